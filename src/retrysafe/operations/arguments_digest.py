"""A digest of the arguments of a call, without class names and without fields that have their default value.

So a field that is added with a default, or a class that is renamed, does not make another call of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from retrysafe.core import values
from retrysafe.engine import typed

DIGEST_HEX_DIGITS = 16
"""The length of a digest. Short, because it is compared with one other digest and never looked up."""


def digest_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """The digest of the arguments of a call. Empty if they have no plain form; then nothing is compared."""
    parameters = inspect.signature(function).parameters
    explicit = {name: value for name, value in given.items() if not is_default_argument(value, parameters, name)}
    try:
        text = values.dumps(strip_defaults(explicit))
    except Exception:  # a class of the user's may raise anything when its fields are read
        return ""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_HEX_DIGITS]


def is_default_argument(value: Any, parameters: Mapping[str, inspect.Parameter], name: str) -> bool:
    """True if an argument has the default of its parameter."""
    default = parameters[name].default if name in parameters else inspect.Parameter.empty
    return default is not inspect.Parameter.empty and is_same_value(value, default)


def strip_defaults(value: Any) -> Any:
    """The value as plain data without class names and without fields at their defaults, recursively."""
    kind: Any = type(value)
    if hasattr(kind, "model_fields"):
        shown = {name: getattr(value, name) for name in kind.model_fields}
        return _drop_defaults(shown, {name: _model_default(field) for name, field in kind.model_fields.items()})
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
        shown = {field.name: getattr(value, field.name) for field in fields}
        return _drop_defaults(shown, {field.name: _field_default(field) for field in fields})
    if kind in (list, tuple, set, frozenset):
        items = [strip_defaults(item) for item in value]
        return items if kind in (list, tuple) else kind(value)
    if kind is dict:
        return {key: strip_defaults(item) for key, item in value.items()}
    return typed.to_plain(value)


_NO_DEFAULT = object()


def _drop_defaults(shown: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: strip_defaults(value)
        for name, value in shown.items()
        if not is_same_value(value, defaults.get(name, _NO_DEFAULT))
    }


def _field_default(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else _NO_DEFAULT


def _model_default(field: Any) -> Any:
    return _NO_DEFAULT if field.is_required() else field.get_default(call_default_factory=True)


def is_same_value(value: Any, default: Any) -> bool:
    """True if both have the same type and are equal: 0 is not False, and 1 is not 1.0."""
    try:
        return type(value) is type(default) and bool(value == default)
    except Exception:
        return False
