"""Deprecated aliases: an old public name works for one more release, with a warning that says the new one
(CONTRIBUTING.md). A file of its own, because modules of every layer import it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    warnings.warn(f"{old} is now called {new}; the old name goes with the next release", DeprecationWarning, stacklevel)


def renamed_members(owner: str, names: Mapping[str, str]) -> Callable[[Any, str], Any]:
    """A `__getattr__` for a class, from its old members to the new ones."""

    def get_renamed(self: Any, name: str) -> Any:
        if name not in names:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        warn_renamed(f"{owner}.{name}", f"{owner}.{names[name]}")
        return getattr(self, names[name])

    return get_renamed


def renamed_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a module, from its old names to the new ones."""

    def get_renamed(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", f"{module}.{names[name]}")
        return getattr(sys.modules[module], names[name])

    return get_renamed
