"""The fingerprint of a job: equal where the job is enqueued and where it runs.

The queue's serialiser lies between the two. It turns tuples into lists, dates into text, and models into plain objects.
None of that makes a different job, so arguments are compared in the form that a JSON serialiser would give them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from enum import Enum
from typing import Any

from retrysafe.core import fingerprint, values
from retrysafe.core.records import Fingerprint
from retrysafe.engine.arguments import bind_arguments, describe_arguments


def fingerprint_job(
    task: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], ignore: frozenset[str]
) -> Fingerprint:
    """The fingerprint of the task's name and of every argument that is not ignored, by name: a positional and a keyword
    argument make the same call."""
    given = bind_arguments(signature, args, kwargs)
    described = describe_arguments(f"task {task}", given, ignore, to_plain)
    return fingerprint.fingerprint_text("job1", values.dumps([task, described]))


def to_plain(value: Any) -> Any:
    """The form that a queue's serialiser would give a value, whichever serialiser it is."""
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
    return value  # describe_arguments refuses it, with the name of the argument


def _field_names(value: Any) -> list[str] | None:
    """The names of a value's fields; None if its class has no declared fields."""
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
