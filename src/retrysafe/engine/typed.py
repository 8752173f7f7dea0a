"""Typed values: the arguments and results of steps are stored as plain data and read back as the annotated type.

Dataclasses, pydantic models, msgspec structs, attrs classes, named tuples and enums are stored by their fields; all
other values go through core/values.py unchanged. Never pickle.

A value without an annotation comes back as plain data. Callers pass on `load(dump(value))` from the start, so that a
program sees the same value on its first run as after a crash.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin

from retrysafe.core import values
from retrysafe.core.records import Answer
from retrysafe.engine import models
from retrysafe.errors import UsageError

SecretsRule = Literal["refuse", "keep", "leave out"]
"""What happens to a field marked `exclude=True`, which often marks a secret. `keep`: the store is encrypted. `refuse`:
it is not. `leave out`: the text is to be shown, as `model_dump()` would show it."""


class SecretField(TypeError):
    """A field that must not be stored in the clear."""

    def __init__(self, kind: type[Any], names: frozenset[str]) -> None:
        shown = ", ".join(sorted(names))
        super().__init__(
            f"{kind.__qualname__} marks {shown} with exclude=True, which often marks a secret: it is stored "
            "only encrypted. Set a key ring, RetrySafe(keyring=KeyRing(…)), or return something without it"
        )


def secrets_rule(sealed: bool) -> SecretsRule:
    return "keep" if sealed else "refuse"


def dump(value: Any, secrets: SecretsRule = "refuse") -> str:
    """A typed value as text. Raises NotPlain if it has no lossless form, SecretField if it must not be stored."""
    return values.dumps(to_plain(value, secrets))


def dump_in_order(value: Any, secrets: SecretsRule = "refuse") -> str:
    """`dump`, in which dicts keep their order."""
    return values.dumps_in_order(to_plain(value, secrets))


def load(text: str, annotation: Any) -> Any:
    """The value of a text, as the annotated type."""
    return from_plain(values.loads(text), annotation)


def to_plain(value: Any, secrets: SecretsRule = "refuse") -> Any:
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Answer):
        return {"status": value.status, "body": value.body, "headers": value.headers}
    if isinstance(value, Enum):
        return to_plain(value.value, secrets)
    kind: Any = type(value)
    if models.is_model(kind):
        return _model_to_plain(value, secrets)
    fields = _field_names(kind)
    if fields is not None:
        hidden = models.excluded_fields(kind)
        if secrets == "refuse" and hidden:
            raise SecretField(kind, hidden)
        written = [name for name in fields if secrets == "keep" or name not in hidden]
        return {name: to_plain(getattr(value, name), secrets) for name in written}
    if kind in (list, tuple, set, frozenset):
        return kind(to_plain(item, secrets) for item in value)
    if kind is dict:
        return {to_plain(key, secrets): to_plain(item, secrets) for key, item in value.items()}
    return value


def _model_to_plain(model: Any, secrets: SecretsRule) -> Any:
    """What `model_dump()` writes, under the names that validation expects; and what it leaves out: excluded fields, and
    the fields of a subclass where the base was declared."""
    kind: Any = type(model)
    shown = model.model_dump(by_alias=True)
    reshaped = models.serializer_fields(kind)
    if secrets == "leave out" or reshaped is None:
        return to_plain(shown, secrets)
    if secrets == "refuse" and models.excluded_fields(kind):
        raise SecretField(kind, models.excluded_fields(kind))
    if getattr(kind, "__pydantic_root_model__", False):
        return to_plain(model.root, secrets)
    plain = {}
    for name, item in models.read_attributes(model).items():
        written = shown.pop(models.dump_name(kind, name), _ABSENT)
        own = written is _ABSENT or (name not in reshaped and _has_fields(item))
        plain[models.validation_name(kind, name)] = to_plain(item if own else written, secrets)
    return {**plain, **to_plain(shown, secrets)}


_ABSENT: Any = object()


def _has_fields(value: Any) -> bool:
    """Whether a part of a model has fields itself, which `model_dump()` might leave out. For pydantic's own dataclasses
    the dump is used, unless it leaves something out: their fields may have other names in it."""
    kind: Any = type(value)
    if models.is_model(kind) or models.excluded_fields(kind):
        return True
    if models.field_infos(kind):
        return False
    if kind in (list, tuple, set, frozenset):
        return any(map(_has_fields, value))
    if kind is dict:
        return any(map(_has_fields, value.values()))
    return dataclasses.is_dataclass(kind)


_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})


def from_plain(data: Any, annotation: Any) -> Any:
    if type(annotation) is type and annotation in _SCALARS:
        return data
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
        build = _find_builder(annotation)
        if build is not None:
            return build(data)
    return data


def has_same_types(value: Any, back: Any) -> bool:
    """Whether a value and what was read back have the same types, recursively. Values are not compared."""
    kind: Any = type(value)
    if type(back) is not kind:
        return False
    if kind in (list, tuple):
        return len(value) == len(back) and all(map(has_same_types, value, back))
    if kind is dict:
        return value.keys() == back.keys() and all(has_same_types(item, back[key]) for key, item in value.items())
    if kind in (set, frozenset):
        return bool(value == back)
    model = getattr(kind, "model_fields", None)
    names = tuple(model) if model is not None else _field_names(typing.cast(Any, kind)) or ()
    extras = getattr(value, "__pydantic_extra__", None)  # of a model with extra="allow"
    if extras and not has_same_types(extras, back.__pydantic_extra__):
        return False
    return all(has_same_types(getattr(value, name), getattr(back, name)) for name in names)


def _from_union(data: Any, options: tuple[Any, ...]) -> Any:
    if data is None and type(None) in options:
        return None
    rich = [option for option in options if option is not type(None)]
    if len(rich) == 1:
        return from_plain(data, rich[0])
    if any(isinstance(option, type) and _find_builder(option) is not None for option in rich):
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
    """Convert the items. The data decides the container, not the annotation: a Sequence may be a list or a tuple."""
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
def _field_names(kind: Any) -> tuple[str, ...] | None:
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
def _find_builder(kind: Any) -> Callable[[Any], Any] | None:
    """The function that makes a value of this type from plain data; None for types that are plain already."""
    validating: Callable[[Any], Any] | None = kind if issubclass(kind, Enum) else getattr(kind, "model_validate", None)
    if validating is not None or _field_names(kind) is None:
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
    """The fields that the constructor does not take. They are set afterwards."""
    if dataclasses.is_dataclass(kind):
        return frozenset(field.name for field in dataclasses.fields(kind) if not field.init)
    if hasattr(kind, "__attrs_attrs__"):
        return frozenset(field.name for field in kind.__attrs_attrs__ if not field.init)
    return frozenset()
