"""Import what a command names as MODULE:NAME, and say in words why that does not work."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from retrysafe.errors import UsageError


def import_named(text: str, default: str = "") -> Any:
    """What `MODULE:NAME` names. Raises UsageError if there is no such module or no such name in it."""
    module, _, name = text.partition(":")
    name = name or default
    if not module or not name:
        raise UsageError(f"{text!r} names no scenario: write MODULE:NAME, such as shop.simulated:SCENARIO")
    if module == "__main__":
        raise UsageError(
            f"{text!r}: MODULE must be importable, and __main__ is another program here. Put your code into a file, "
            f"such as shop/simulated.py, and name it: shop.simulated:{name}"
        )
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, and imports something that does not
        raise UsageError(
            f"{text!r}: MODULE must be importable, and there is no module {error.name!r}. Run the command in the "
            "folder that holds it, or set PYTHONPATH"
        ) from error
    if not hasattr(found, name):
        raise UsageError(f"{text!r}: module {module!r} has no {name!r}")
    return getattr(found, name)
