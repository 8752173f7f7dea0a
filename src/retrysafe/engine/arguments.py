"""The arguments of a call as plain data: for the fingerprint of a function call, and for its key.

Positional and keyword spellings are the same call, defaults count as given, and every argument counts that is not
ignored explicitly. An argument that cannot be described is an error: without it, different calls would look the same.

Values with fields are compared by their attributes, recursively. That includes pydantic models of a subclass, fields
marked `exclude=True`, and dataclass fields marked `compare=False` (which is about `==`; an argument that must not count
goes into `ignore=`). Private attributes of a model are not fields and do not count.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, cast

from retrysafe.core import fingerprint, values
from retrysafe.core.records import Fingerprint
from retrysafe.engine import models
from retrysafe.errors import ArgumentError

TAG_PREFIX = "\0"
"""Prefix of the keys that we write. A user's key with this prefix gets it twice, so that no dict looks like an enum."""


def bind_arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Every argument by its name. Raises the TypeError that a call would raise."""
    given = signature.bind(*args, **kwargs)
    given.apply_defaults()
    return dict(given.arguments)


def fingerprint_call(function: str, arguments: Mapping[str, Any], ignore: frozenset[str]) -> Fingerprint:
    """The fingerprint of a call, in the form of the release before this one where that form leaves nothing out."""
    describer = ArgumentDescriber()
    described = describe_arguments(function, arguments, ignore, describer.describe)
    form = "call1"
    if describer.beyond_legacy_form or (describer.models and not _is_legacy_form_complete(describer.models)):
        form = "call2"
    elif describer.models:
        described = {name: describe_legacy(arguments[name]) for name in described}
    # The function's name is included: two functions that share a scope and a key must not get each other's results.
    return fingerprint.fingerprint_text(form, values.dumps([function, described]))


def describe_arguments(
    function: str, arguments: Mapping[str, Any], ignore: frozenset[str], describe: Callable[[Any], Any]
) -> dict[str, Any]:
    """The arguments that are not ignored, each described as plain data. Raises ArgumentError for one that cannot be."""
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
    return described


def _is_legacy_form_complete(found_models: list[Any]) -> bool:
    from retrysafe.engine.dump_coverage import is_dump_complete  # here, not above: only calls with models need it

    return all(map(is_dump_complete, found_models))


class ArgumentDescriber:
    """Describes the values of one call. It remembers the outermost models: their older form, `model_dump()`, may be
    another text."""

    def __init__(self) -> None:
        self.models: list[Any] = []
        self.beyond_legacy_form = False
        """Whether there was something that the older form could not express: a set of values with fields."""
        self._open_ids: set[int] = set()
        self._models_within = 0

    def describe(self, value: Any) -> Any:
        """Plain data that differs whenever the values do. It names types: two classes with the same fields differ. It
        does not name their modules, so that a class may move: classes, or members of enums, that share a qualified name
        are the same."""
        if type(value) in _SCALARS:
            return value
        if id(value) in self._open_ids:
            raise values.NotPlain(value, "", "which contains itself: there is no end to what would be compared")
        self._open_ids.add(id(value))
        try:
            return self._describe_composite(value)
        except RecursionError:
            raise values.NotPlain(value, "", "nested too deeply") from None
        finally:
            self._open_ids.discard(id(value))

    def _describe_composite(self, value: Any) -> Any:
        kind = type(value)
        if kind in (list, tuple):
            return kind(self.describe(item) for item in value)
        if kind is dict:
            return {_escape_key(key): self.describe(item) for key, item in value.items()}
        if kind in (set, frozenset):
            return self._describe_set(value)
        if isinstance(value, Enum):
            return self._describe_member(value)
        if models.is_model(kind) and not dataclasses.is_dataclass(kind):
            return self._describe_model(value)
        fields = _read_fields(value)
        return value if fields is None else self._describe_fields(value, fields)

    def _describe_member(self, member: Enum) -> dict[str, Any]:
        described = _describe_enum(member)
        if cast("str | None", member.name) is None and member.value:  # bits of an IntFlag that no member stands for
            self.beyond_legacy_form = True
            described[f"{TAG_PREFIX}value"] = member.value
        return described

    def _describe_model(self, model: Any) -> Any:
        if not self._models_within:
            self.models.append(model)
        self._models_within += 1
        try:
            return self._describe_fields(model, models.read_attributes(model))
        finally:
            self._models_within -= 1

    def _describe_set(self, value: Any) -> Any:
        items = [self.describe(item) for item in value]
        if all(described is item or described == item for described, item in zip(items, value, strict=True)):
            return value
        self.beyond_legacy_form = True
        return {f"{TAG_PREFIX}{type(value).__name__}": sorted(items, key=values.dumps)}

    def _describe_fields(self, value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
        return _tag_type(value, {name: self.describe(item) for name, item in fields.items()})


_SCALARS = frozenset({str, int, bool, float, bytes, type(None)})


def describe_legacy(value: Any) -> Any:
    """The older form, in which a model is its `model_dump()`. Keys made of arguments keep this form for ever: another
    text would be another key, and work that was done would run again. Different values that share a key are told apart
    by their fingerprints."""
    if isinstance(value, Enum):
        return _describe_enum(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _describe_fields_legacy(value, _read_fields(value) or {})
    if hasattr(type(value), "model_dump"):
        return _describe_fields_legacy(value, value.model_dump())
    fields = _read_fields(value)
    if fields is not None:
        return _describe_fields_legacy(value, fields)
    if type(value) is list:
        return [describe_legacy(item) for item in value]
    if type(value) is tuple:
        return tuple(describe_legacy(item) for item in value)
    if type(value) is dict:
        return {_escape_key(key): describe_legacy(item) for key, item in value.items()}
    return value


def _read_fields(value: Any) -> Mapping[str, Any] | None:
    """The fields of a dataclass, struct, attrs class or named tuple; None for anything else."""
    kind: Any = type(value)
    if dataclasses.is_dataclass(kind):
        return _read_attributes(value, (field.name for field in dataclasses.fields(kind)))
    if hasattr(kind, "__struct_fields__"):
        return _read_attributes(value, kind.__struct_fields__)
    if hasattr(kind, "__attrs_attrs__"):
        return _read_attributes(value, (field.name for field in kind.__attrs_attrs__))
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields: Mapping[str, Any] = value._asdict()
        return fields
    if hasattr(kind, "model_dump"):  # not a pydantic model, but with the same method
        dumped: Mapping[str, Any] = value.model_dump()
        return dumped
    return None


def _read_attributes(value: Any, names: Iterable[str]) -> dict[str, Any]:
    try:
        return {name: getattr(value, name) for name in names}
    except AttributeError as error:
        raise values.NotPlain(value, "", f"of which a field is not set ({error})") from None


def _describe_enum(value: Enum) -> dict[str, Any]:
    return {f"{TAG_PREFIX}enum": f"{type(value).__qualname__}.{value.name}"}


def _tag_type(value: Any, described: dict[str, Any]) -> dict[str, Any]:
    return {f"{TAG_PREFIX}type": type(value).__qualname__, f"{TAG_PREFIX}fields": described}


def _describe_fields_legacy(value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    return _tag_type(value, {name: describe_legacy(item) for name, item in fields.items()})


def _escape_key(key: Any) -> Any:
    return TAG_PREFIX + key if type(key) is str and key.startswith(TAG_PREFIX) else key
