"""Old public names work for one more release, with a warning that says the new name (CONTRIBUTING.md)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    warnings.warn(f"{old} is now called {new}; the old name goes with the next release", DeprecationWarning, stacklevel)


def renamed_names(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a module: old names of it, each with the new one."""

    def get_renamed(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", f"{module}.{names[name]}")
        return getattr(sys.modules[module], names[name])

    return get_renamed
