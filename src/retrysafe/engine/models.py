"""Reads pydantic models without importing pydantic: a program that has a model has imported it.

A model is read by its attributes, not by `model_dump()`: that leaves out fields marked `exclude=True`, and for a
subclass in a field of the base type it writes only the fields of the base.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any


def is_model(kind: Any) -> bool:
    return hasattr(kind, "model_dump") and hasattr(kind, "model_fields")


def read_attributes(model: Any) -> dict[str, Any]:
    """The fields and extras of a model, unchanged. Private attributes and cached properties are not fields."""
    attributes = vars(model)
    known = {name: attributes[name] for name in field_infos(type(model)) if name in attributes}
    return {**known, **(getattr(model, "__pydantic_extra__", None) or {})}


def field_infos(kind: Any) -> Mapping[str, Any]:
    """The field infos of a model or of a pydantic dataclass by name; empty for anything else."""
    return getattr(kind, "__pydantic_fields__", None) or {}


@lru_cache(maxsize=512)
def excluded_fields(kind: Any) -> frozenset[str]:
    """The fields that the class leaves out of `model_dump()`: often secrets."""
    return frozenset(
        name
        for name, info in field_infos(kind).items()
        if info.exclude or getattr(info, "exclude_if", None) is not None
    )


@lru_cache(maxsize=512)
def serializer_fields(kind: Any) -> frozenset[str] | None:
    """The fields that the user's own serializers write; None if one of them writes the whole model."""
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
    """The name under which validation expects a field."""
    info = field_infos(kind).get(name)
    alias = None if info is None else info.validation_alias
    return alias if isinstance(alias, str) else dump_name(kind, name)
