"""Values with types: what a step takes and returns is stored as plain data and comes back as what its annotation says.

Dataclasses, pydantic models, msgspec structs, attrs classes, named tuples and enums are taken apart by their fields
and put together again; everything else goes through core/values.py as it is. Never pickle.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, Union, get_args, get_origin

from retrysafe.core import values
from retrysafe.core.records import Answer
from retrysafe.errors import UsageError


def dump(value: Any) -> str:
    """A typed value as text. Raises values.NotPlain where it has no faithful form."""
    return values.dumps(to_plain(value))


def load(text: str, annotation: Any) -> Any:
    """The value a text stands for, as its annotation says."""
    return from_plain(values.loads(text), annotation)


def to_plain(value: Any) -> Any:
    if isinstance(value, Answer):
        return {"status": value.status, "body": value.body, "headers": value.headers}
    if isinstance(value, Enum):
        return value.value
    fields = _fields(value)
    if fields is not None:
        return {name: to_plain(getattr(value, name)) for name in fields}
    if type(value) is list:
        return [to_plain(item) for item in value]
    if type(value) is tuple:
        return tuple(to_plain(item) for item in value)
    if type(value) is dict:
        return {key: to_plain(item) for key, item in value.items()}
    return value


def from_plain(data: Any, annotation: Any) -> Any:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _from_union(data, get_args(annotation))
    if origin in (list, tuple, dict):
        return _from_container(data, origin, get_args(annotation))
    if annotation is Answer:
        return Answer(data["status"], data["body"], data["headers"])
    if isinstance(annotation, type):
        build = _builder(annotation)
        if build is not None:
            return build(data)
    return data


def _from_union(data: Any, options: tuple[Any, ...]) -> Any:
    if data is None and type(None) in options:
        return None
    rich = [option for option in options if option is not type(None)]
    if len(rich) == 1:
        return from_plain(data, rich[0])
    if any(isinstance(option, type) and _builder(option) is not None for option in rich):
        raise UsageError(f"a value annotated as one of {rich} cannot be told apart when it is read back; use one type")
    return data


def _from_container(data: Any, origin: Any, inner: tuple[Any, ...]) -> Any:
    if not inner:
        return data
    if origin is list:
        return [from_plain(item, inner[0]) for item in data]
    if origin is dict:
        return {key: from_plain(item, inner[1]) for key, item in data.items()}
    if inner[-1] is Ellipsis:
        return tuple(from_plain(item, inner[0]) for item in data)
    return tuple(from_plain(item, each) for item, each in zip(data, inner, strict=True))


def _fields(value: Any) -> list[str] | None:
    """The field names of a structured value; None for anything else."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if hasattr(kind, "model_fields"):
        return list(kind.model_fields)
    if hasattr(kind, "__struct_fields__"):
        return list(kind.__struct_fields__)
    if hasattr(kind, "__attrs_attrs__"):
        return [field.name for field in kind.__attrs_attrs__]
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return list(kind._fields)
    return None


def _builder(kind: type[Any]) -> Callable[[Any], Any] | None:
    """How to make one from plain data; None for types that are plain already."""
    if issubclass(kind, Enum):
        return kind
    if hasattr(kind, "model_validate"):
        return kind.model_validate  # type: ignore[no-any-return]
    structured = (
        dataclasses.is_dataclass(kind)
        or hasattr(kind, "__struct_fields__")
        or hasattr(kind, "__attrs_attrs__")
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )
    if not structured:
        return None
    hints = typing.get_type_hints(kind)
    return lambda data: kind(**{name.lstrip("_"): from_plain(item, hints.get(name)) for name, item in data.items()})
