"""What is read of a function's declaration, once for each function in the source instead of once for each process.

An application declares its functions anew whenever a simulated process starts. Most of a start was spent on reading the
same signatures and annotations again. They are the same as long as code, defaults and annotations are.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, NamedTuple

MAX_REMEMBERED = 1000
"""Functions. A program that makes code while it runs does not fill the memory."""


class _Declaration(NamedTuple):
    """What was read, and what it was read from: which is held, so that its identity stays its own."""

    code: CodeType
    defaults: tuple[Any, ...]
    names: dict[str, Any]
    annotations: dict[str, Any]
    read: Any


class DeclarationReader:
    """Stands before a function that reads declarations. Whatever is not a plain function is not remembered."""

    def __init__(self, read: Callable[..., Any]) -> None:
        self._read = read
        self._known: dict[int, _Declaration] = {}

    def __call__(self, function: Any, *args: Any, **options: Any) -> Any:
        if args or options or type(function) is not FunctionType or function.__dict__:
            return self._read(function, *args, **options)
        code, names, annotations = function.__code__, function.__globals__, function.__annotations__
        defaults = function.__defaults__ or ()
        if function.__kwdefaults__:
            defaults = (*defaults, *function.__kwdefaults__, *function.__kwdefaults__.values())
        known = self._known.get(id(code))
        if (
            known is not None
            and known.names is names
            and known.annotations == annotations
            and len(known.defaults) == len(defaults)
            and all(one is other for one, other in zip(known.defaults, defaults, strict=True))
        ):
            return known.read
        read = self._read(function)
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[id(code)] = _Declaration(code, defaults, names, dict(annotations), read)
        return read


read_signature = DeclarationReader(inspect.signature)
_read_hints = DeclarationReader(typing.get_type_hints)


def read_hints(function: Any, *args: Any, **options: Any) -> dict[str, Any]:
    """A dict of the caller's own, as `typing.get_type_hints` gives it."""
    return dict(_read_hints(function, *args, **options))
