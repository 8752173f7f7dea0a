"""Work that a plain function returned instead of doing it: a coroutine, or a generator.

A decorator that calls an `async def` and returns what it gets makes a plain function of it. Without a loop, nobody
awaits that coroutine. It must not count as done: its key would be used up, and nothing would ever run.
"""

from __future__ import annotations

from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from retrysafe.errors import UsageError

_GENERATORS = (GeneratorType, AsyncGeneratorType)


def refuse_coroutine(result: Any) -> Any:
    """The result of a function that was called without an event loop. Raises UsageError for a coroutine."""
    if type(result) is not CoroutineType:
        return result
    result.close()
    raise UsageError(
        f"a plain function returned the coroutine {result.__qualname__}(), which nobody awaits: its work was not "
        "done. Make the function itself `async def`, and so each decorator around it"
    )


def refuse_unstarted(result: Any) -> Any:
    """The result of a function whose result is not used further. Raises UsageError for a generator, too."""
    if type(result) in _GENERATORS:
        raise UsageError(
            f"a plain function returned the generator {result.__qualname__}(), whose body nobody runs: its work was "
            "not done. Do the work in the function itself"
        )
    return refuse_coroutine(result)
