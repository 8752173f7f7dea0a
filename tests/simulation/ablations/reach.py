"""Whether the code of a patch ran, and whether it crashed.

A patch that no history comes to, or that crashes because the code around it has changed, proves nothing about the
safeguard that it takes out. So everything that an ablation puts in place is watched (`watch`): each call is counted,
and an error that only a mistake in a program raises is kept. `find` (base.py) then tells the three apart: not reached,
crashed, and not noticed.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import CoroutineType, GeneratorType
from typing import Any

MISTAKES = (TypeError, AttributeError, NameError, ImportError, LookupError, NotImplementedError)
"""Errors of a patch that does not fit the code any more. No code raises them on purpose where a patch stands."""


class AblationError(Exception):
    """An ablation that proves nothing: its patch crashed, was not reached, or does not fit what it replaces."""


class Reach:
    """How often each patched place ran, and the mistakes that came out of it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.crashes: list[str] = []

    def note(self, place: str, error: BaseException) -> None:
        if isinstance(error, MISTAKES):
            self.crashes.append(f"{place}: {type(error).__name__}: {error}")


_now = Reach()


@contextmanager
def watch_reach() -> Iterator[Reach]:
    """What is reached within the block. One process plays one history at a time."""
    global _now  # noqa: PLW0603 - as the simulation itself (virtual.py)
    before, _now = _now, Reach()
    try:
        yield _now
    finally:
        _now = before


def watch(place: str, replacement: Any) -> Any:
    """The same function (or property), with its calls counted. A value that is no function cannot be watched."""
    if isinstance(replacement, property):
        assert replacement.fget is not None
        return property(watch(place, replacement.fget))
    if not callable(replacement):
        raise AblationError(f"{place}: {replacement!r} is no function, so nobody knows whether it is reached")

    def watched(*args: Any, **kwargs: Any) -> Any:
        _now.counts[place] += 1
        try:
            result = replacement(*args, **kwargs)
        except MISTAKES as error:
            _now.note(place, error)
            raise
        if type(result) is GeneratorType:
            return _watch_generator(place, result)
        if type(result) is CoroutineType:
            return _watch_coroutine(place, result)
        return result

    return watched


def _watch_generator(place: str, inner: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    try:
        return (yield from inner)
    except MISTAKES as error:
        _now.note(place, error)
        raise


async def _watch_coroutine(place: str, inner: Any) -> Any:
    try:
        return await inner
    except MISTAKES as error:
        _now.note(place, error)
        raise


def check_fits(place: str, original: Any, replacement: Any) -> None:
    """Raise unless the replacement can be called as the original can: with all of its parameters, and with those alone
    that have no default."""
    if isinstance(original, property) and isinstance(replacement, property):
        original, replacement = original.fget, replacement.fget
    try:
        taken, wanted = inspect.signature(replacement), inspect.signature(original)
    except (TypeError, ValueError):  # of C, without a signature
        return
    for args, kwargs in _list_calls(wanted):
        try:
            taken.bind(*args, **kwargs)
        except TypeError as error:
            raise AblationError(
                f"{place}: the patch takes {taken}, and the code has {wanted} now ({error}); bring the patch up to date"
            ) from None


def _list_calls(wanted: inspect.Signature) -> Iterator[tuple[list[str], dict[str, str]]]:
    for every in (True, False):
        chosen = [each for each in wanted.parameters.values() if every or each.default is each.empty]
        positional = [each.name for each in chosen if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        yield positional, {each.name: each.name for each in chosen if each.kind is each.KEYWORD_ONLY}
