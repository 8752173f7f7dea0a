"""What a job was asked to do, as one fingerprint: the same where it is enqueued and where it is run.

Between the two lies the queue's serialiser, which makes lists of tuples, text of dates and plain objects of models.
None of that makes it another job. So the arguments are compared by what a JSON serialiser would leave of them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from enum import Enum
from typing import Any

from retrysafe.core import fingerprint, values
from retrysafe.core.records import Fingerprint
from retrysafe.engine.arguments import bind_arguments
from retrysafe.errors import ArgumentError


def fingerprint_call(
    task: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], ignore: frozenset[str]
) -> Fingerprint:
    """Of the task's name and every argument that is not ignored, by name: positional and keyword are one call."""
    given = bind_arguments(signature, args, kwargs)
    described = {}
    for name, value in given.items():
        if name in ignore:
            continue
        try:
            described[name] = to_plain(value)
            values.dumps(described[name])
        except values.NotPlain as error:
            raise ArgumentError(
                f"argument {name!r} of task {task} cannot be compared: {error}. Pass plain data, or leave it out of "
                f"the comparison with ignore=({name!r},)"
            ) from None
    return fingerprint.fingerprint_text("job1", values.dumps([task, described]))


def to_plain(value: Any) -> Any:
    """What a queue's serialiser would leave of a value, whichever it is."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    fields = _field_names(value)
    if fields is not None:
        return {name: to_plain(getattr(value, name)) for name in fields}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((to_plain(item) for item in value), key=repr)
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__name__ in ("Decimal", "UUID"):
        return str(value)
    return value  # left to the check of whoever asked: it names the argument


def _field_names(value: Any) -> list[str] | None:
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    for names in ("model_fields", "__struct_fields__", "_fields"):
        found = getattr(kind, names, None)
        if found is not None and not callable(found):
            return list(found)
    if hasattr(kind, "__attrs_attrs__"):
        return [item.name for item in kind.__attrs_attrs__]
    return None
