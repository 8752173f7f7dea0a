"""What pydantic says about a class, without importing pydantic: whoever has a model has imported it.

A model is taken by its attributes, never by what it shows of itself: `model_dump()` leaves out fields marked
`exclude=True`, and of a subclass in a field of the base type it tells only what the base has.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any


def is_model(kind: Any) -> bool:
    return hasattr(kind, "model_dump") and hasattr(kind, "model_fields")


def read_attributes(model: Any) -> dict[str, Any]:
    """Every field and every extra of a model as it is. Private attributes and cached properties are no fields."""
    held = vars(model)
    known = {name: held[name] for name in field_infos(type(model)) if name in held}
    return {**known, **(getattr(model, "__pydantic_extra__", None) or {})}


def field_infos(kind: Any) -> Mapping[str, Any]:
    """The field infos of a model or of a pydantic dataclass by name; empty for anything else."""
    return getattr(kind, "__pydantic_fields__", None) or {}


@lru_cache(maxsize=512)
def excluded_fields(kind: Any) -> frozenset[str]:
    """The fields that the class keeps to itself when it is shown: often secrets."""
    return frozenset(
        name
        for name, info in field_infos(kind).items()
        if info.exclude or getattr(info, "exclude_if", None) is not None
    )


@lru_cache(maxsize=512)
def serializer_fields(kind: Any) -> frozenset[str] | None:
    """The fields that a serializer of the user's own writes; None when one writes the whole model."""
    declared = getattr(kind, "__pydantic_decorators__", None)
    if declared is not None and declared.model_serializers:
        return None
    named = [each.info.fields for each in declared.field_serializers.values()] if declared is not None else []
    if any("*" in names for names in named):
        return frozenset(field_infos(kind))
    written = {name for names in named for name in names}
    marked = {name for name, info in field_infos(kind).items() if any(hasattr(m, "when_used") for m in info.metadata)}
    return frozenset(written | marked)


def dump_name(kind: Any, name: str) -> str:
    """The name under which `model_dump(by_alias=True)` writes a field."""
    info = field_infos(kind).get(name)
    return name if info is None else info.serialization_alias or info.alias or name


def validation_name(kind: Any, name: str) -> str:
    """The name under which validation asks for a field."""
    info = field_infos(kind).get(name)
    asked = None if info is None else info.validation_alias
    return asked if isinstance(asked, str) else dump_name(kind, name)
