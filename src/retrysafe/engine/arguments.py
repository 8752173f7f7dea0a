"""A call's arguments as plain data: for the fingerprint of a function call, and for its key.

Positional and keyword spellings are one call, defaults count as given, and every argument counts that is not
explicitly ignored. What cannot be described is an error, because leaving it out would make different calls one.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from enum import Enum
from typing import Any

from retrysafe.core import fingerprint, values
from retrysafe.core.records import Fingerprint
from retrysafe.errors import ArgumentError

MARK = "\0"
"""Begins the keys we write; a user's key that begins with it gets another, so that no dict can pose as an enum."""


def bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Every argument by its name; TypeError as Python itself would raise it."""
    given = signature.bind(*args, **kwargs)
    given.apply_defaults()
    return dict(given.arguments)


def fingerprint_of(function: str, arguments: Mapping[str, Any], ignore: frozenset[str]) -> Fingerprint:
    described = {}
    for name, value in arguments.items():
        if name in ignore:
            continue
        try:
            described[name] = describe(value)
            values.dumps(described[name])
        except values.NotPlain as error:
            raise ArgumentError(
                f"argument {name!r} of {function} cannot be fingerprinted: {error}. Pass plain data, or leave it out "
                f"of the comparison with ignore=({name!r},)"
            ) from None
    # With the function's name: two functions that share a scope and a key must not get each other's results.
    return fingerprint.of_text("call1", values.dumps([function, described]))


def describe(value: Any) -> Any:
    """Plain data that differs whenever the values do. Types are named: two classes with the same fields differ."""
    if isinstance(value, Enum):
        return {f"{MARK}enum": f"{type(value).__qualname__}.{value.name}"}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _named(value, {f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if hasattr(type(value), "model_dump"):
        return _named(value, value.model_dump())
    if hasattr(type(value), "__struct_fields__"):
        return _named(value, {name: getattr(value, name) for name in value.__struct_fields__})
    if hasattr(type(value), "__attrs_attrs__"):
        return _named(value, {item.name: getattr(value, item.name) for item in value.__attrs_attrs__})
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _named(value, value._asdict())
    if type(value) is list:
        return [describe(item) for item in value]
    if type(value) is tuple:
        return tuple(describe(item) for item in value)
    if type(value) is dict:
        return {_unmarked(key): describe(item) for key, item in value.items()}
    return value


def _named(value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{MARK}type": type(value).__qualname__,
        f"{MARK}fields": {name: describe(item) for name, item in fields.items()},
    }


def _unmarked(key: Any) -> Any:
    return MARK + key if type(key) is str and key.startswith(MARK) else key
