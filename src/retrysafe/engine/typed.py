"""Values with types: what a step takes and returns is stored as plain data and comes back as what its annotation says.

Dataclasses, pydantic models, msgspec structs, attrs classes, named tuples and enums are taken apart by their fields
and put together again; everything else goes through core/values.py as it is. Never pickle.

What has no annotation comes back as plain data. Callers give back what `load(dump(value))` gives from the start, so
that a program sees the same on its first run as after a crash.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
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
        return to_plain(value.value)
    kind: Any = type(value)
    if hasattr(kind, "model_fields"):
        return to_plain(value.model_dump(by_alias=True))  # under the names that validation asks for
    fields = _fields(kind)
    if fields is not None:
        return {name: to_plain(getattr(value, name)) for name in fields}
    if kind in (list, tuple, set, frozenset):
        return kind(to_plain(item) for item in value)
    if kind is dict:
        return {to_plain(key): to_plain(item) for key, item in value.items()}
    return value


def from_plain(data: Any, annotation: Any) -> Any:
    while hasattr(annotation, "__supertype__"):  # NewType: a name for another type
        annotation = annotation.__supertype__
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        return from_plain(data, get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return _from_union(data, get_args(annotation))
    if origin in _CONTAINERS:
        return _from_container(data, get_args(annotation))
    if annotation is Answer:
        return Answer(data["status"], data["body"], data["headers"])
    if isinstance(annotation, type):
        build = _builder(annotation)
        if build is not None:
            return build(data)
    return data


def alike(value: Any, back: Any) -> bool:
    """Whether what came back is of the same types as what went in, all the way down; values are not compared."""
    kind: Any = type(value)
    if type(back) is not kind:
        return False
    if kind in (list, tuple):
        return len(value) == len(back) and all(map(alike, value, back))
    if kind is dict:
        return value.keys() == back.keys() and all(alike(item, back[key]) for key, item in value.items())
    if kind in (set, frozenset):
        return bool(value == back)
    model = getattr(kind, "model_fields", None)
    names = tuple(model) if model is not None else _fields(typing.cast(Any, kind)) or ()
    return all(alike(getattr(value, name), getattr(back, name)) for name in names)


def _from_union(data: Any, options: tuple[Any, ...]) -> Any:
    if data is None and type(None) in options:
        return None
    rich = [option for option in options if option is not type(None)]
    if len(rich) == 1:
        return from_plain(data, rich[0])
    if any(isinstance(option, type) and _builder(option) is not None for option in rich):
        raise UsageError(f"a value annotated as one of {rich} cannot be told apart when it is read back; use one type")
    return data


_CONTAINERS = frozenset(
    {
        list, tuple, dict, set, frozenset,
        collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection, collections.abc.Mapping,
        collections.abc.Set, collections.abc.MutableSequence, collections.abc.MutableMapping,
    }
)  # fmt: skip


def _from_container(data: Any, inner: tuple[Any, ...]) -> Any:
    """By what it is, not by what it was called: a Sequence may have been a list or a tuple."""
    if not inner:
        return data
    if isinstance(data, dict):
        return {from_plain(key, inner[0]): from_plain(item, inner[-1]) for key, item in data.items()}
    if isinstance(data, tuple) and inner[-1] is not Ellipsis and len(inner) > 1:
        return tuple(from_plain(item, each) for item, each in zip(data, inner, strict=True))
    if isinstance(data, list | tuple | set | frozenset):
        return type(data)(from_plain(item, inner[0]) for item in data)
    return data


@lru_cache(maxsize=512)
def _fields(kind: Any) -> tuple[str, ...] | None:
    """The field names of a structured type; None for anything else."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if hasattr(kind, "__struct_fields__"):
        return tuple(kind.__struct_fields__)
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(field.name for field in kind.__attrs_attrs__)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return tuple(kind._fields)
    return None


@lru_cache(maxsize=512)
def _builder(kind: Any) -> Callable[[Any], Any] | None:
    """How to make one from plain data; None for types that are plain already."""
    validating: Callable[[Any], Any] | None = kind if issubclass(kind, Enum) else getattr(kind, "model_validate", None)
    if validating is not None or _fields(kind) is None:
        return validating
    hints = typing.get_type_hints(kind)
    later = _not_in_init(kind)

    def build(data: dict[str, Any]) -> Any:
        given = {name: from_plain(item, hints.get(name)) for name, item in data.items()}
        made = kind(**{name.lstrip("_"): item for name, item in given.items() if name not in later})
        for name in later & given.keys():
            object.__setattr__(made, name, given[name])
        return made

    return build


def _not_in_init(kind: type[Any]) -> frozenset[str]:
    """Fields that the constructor does not take: they are set afterwards."""
    if dataclasses.is_dataclass(kind):
        return frozenset(field.name for field in dataclasses.fields(kind) if not field.init)
    if hasattr(kind, "__attrs_attrs__"):
        return frozenset(field.name for field in kind.__attrs_attrs__ if not field.init)
    return frozenset()
