"""Whether `model_dump()` writes everything about a model: its fields, their values, and the class of each part.

Until 0.1 the fingerprint of a call was made of the dump. Where the dump is complete, the same text is made today, so
that two releases side by side agree. Where it is not, two different calls had one fingerprint. Such a call gets the new
form only: a record of the older release, which may belong to another call, is never replayed for it.

The result depends on the classes rather than the values: a field marked `exclude=True` may have had any value, also if
it has its default now.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin

from retrysafe.engine import models


def is_dump_complete(model: Any) -> bool:
    """Whether the older form of this model leaves nothing out."""
    if not _dumps_every_field(type(model)):
        return False
    dumped = model.model_dump()
    return isinstance(dumped, dict) and _is_covered(dumped, model, type(model))


def _is_covered(dumped: Any, value: Any, declared: Any) -> bool:
    kind: Any = type(value)
    if models.is_model(kind) or dataclasses.is_dataclass(kind):
        return _are_fields_covered(dumped, value, declared)
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return False
    if kind in (list, tuple):
        pairs = zip(dumped, value, strict=True) if type(dumped) is kind and len(dumped) == len(value) else None
        return pairs is not None and all(
            _is_covered(each, item, _item_annotation(declared, place)) for place, (each, item) in enumerate(pairs)
        )
    if kind is dict:
        alike = type(dumped) is dict and dumped.keys() == value.keys()
        return alike and all(
            _is_covered(dumped[key], item, _item_annotation(declared, -1)) for key, item in value.items()
        )
    if hasattr(kind, "__struct_fields__") or hasattr(kind, "__attrs_attrs__"):
        return False
    return dumped is value or (type(dumped) is kind and bool(dumped == value))


def _are_fields_covered(dumped: Any, value: Any, declared: Any) -> bool:
    kind: Any = type(value)
    if not (_dumps_every_field(kind) and _is_declared_as(kind, declared)):
        return False
    if getattr(kind, "__pydantic_root_model__", False):
        return _is_covered(dumped, value.root, models.field_infos(kind)["root"].annotation)
    hints = _read_field_hints(kind)
    if not isinstance(dumped, dict) or hints is None:
        return False
    attributes = (
        models.read_attributes(value) if models.is_model(kind) else {name: getattr(value, name) for name in hints}
    )
    named = {name if name in dumped else models.dump_name(kind, name): item for name, item in attributes.items()}
    if not named.keys() <= dumped.keys():
        return False
    types_of = {name if name in dumped else models.dump_name(kind, name): hint for name, hint in hints.items()}
    return all(_is_covered(dumped[name], item, types_of.get(name, Any)) for name, item in named.items())


def _dumps_every_field(kind: Any) -> bool:
    return not models.excluded_fields(kind) and models.serializer_fields(kind) == frozenset()


def _is_declared_as(kind: Any, declared: Any) -> bool:
    """Whether the annotation implies this class: the older form had no class names inside a model."""
    options = _union_options(declared)
    return kind in options and all(each is kind or _is_distinguishable(kind, each) for each in options)


def _is_distinguishable(kind: Any, other: Any) -> bool:
    """Whether the fields alone tell the two classes apart."""
    if get_origin(other) is not None:
        return get_origin(other) in (list, tuple, set, frozenset)
    if not isinstance(other, type) or issubclass(other, dict):
        return False
    if not (models.is_model(other) or dataclasses.is_dataclass(other)):
        return True
    mine, others = _read_field_hints(kind), _read_field_hints(typing.cast(Any, other))
    if mine is None or others is None:
        return False
    return mine.keys() != others.keys() or any(_has_no_common_literal(mine[name], others[name]) for name in mine)


def _has_no_common_literal(one: Any, other: Any) -> bool:
    literals = get_origin(one) is Literal and get_origin(other) is Literal
    return literals and not set(get_args(one)) & set(get_args(other))


@lru_cache(maxsize=512)
def _read_field_hints(kind: Any) -> dict[str, Any] | None:
    """The annotations of a class's fields; None if they cannot be read."""
    if models.is_model(kind):
        return {name: info.annotation for name, info in models.field_infos(kind).items()}
    try:
        known = typing.get_type_hints(kind)
    except Exception:  # a name that only the type checker knows
        return None
    return {field.name: known[field.name] for field in dataclasses.fields(kind)}


def _union_options(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is typing.Annotated:
        return _union_options(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(option for each in get_args(annotation) for option in _union_options(each))
    return (annotation,)


def _item_annotation(annotation: Any, place: int) -> Any:
    """The annotation of the item in this place of a container; Any if there is none."""
    found = [each for each in _union_options(annotation) if get_args(each) and get_origin(each) is not Literal]
    if len(found) != 1:
        return Any
    inner = get_args(found[0])
    if get_origin(found[0]) is tuple and inner[-1] is not Ellipsis:
        return inner[place] if place < len(inner) else Any
    return inner[0] if inner[-1] is Ellipsis else inner[-1]
