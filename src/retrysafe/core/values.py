"""Python values as JSON and back, without loss.

`dumps` is canonical (sorted keys, no white space), so fingerprints and key templates use it. `loads` returns exactly
what was written. The codec of results writes with `dumps_in_order`: a dict comes back in its own order.

A value that JSON does not have is written as an object with one key that starts with `$`: {"$tuple": [1, 2]},
{"$bytes": "aGk="}. A user's key that starts with `$` gets a second one, so that it is never taken for one of ours.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from importlib import import_module
from typing import Any, TypeVar

Moment = TypeVar("Moment", datetime, time)


class NotPlain(TypeError):
    """A value that has no lossless JSON form. `path` is its place."""

    def __init__(self, value: object, path: str, why: str = "which has no faithful JSON form") -> None:
        self.value_type = type(value).__qualname__
        self.path = path
        super().__init__(f"{path or 'the value'} is a {self.value_type}, {why}")


def dumps(value: Any) -> str:
    """The canonical text of a value. Raises NotPlain where `loads(dumps(v)) == v` would not hold."""
    return _dump(value, _encode, canonical=True)


def dumps_in_order(value: Any) -> str:
    """The text of a value whose dicts come back in the order that they have. `loads` reads it like any other."""
    return _dump(value, _encode_in_order, canonical=False)


def _dump(value: Any, encode: Callable[[Any], str], *, canonical: bool) -> str:
    try:
        return encode(_to_plain(value, "", canonical))
    except RecursionError:
        raise NotPlain(value, "", "nested too deeply, or inside itself") from None
    except ValueError as error:  # an integer with more digits than Python converts to text
        raise NotPlain(value, "", f"which cannot be written ({error})") from None


_FORM: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
_encode = json.JSONEncoder(sort_keys=True, **_FORM).encode
_encode_in_order = json.JSONEncoder(**_FORM).encode


def loads(text: str | bytes) -> Any:
    return _from_plain(json.loads(text))


def _to_plain(value: Any, path: str, canonical: bool) -> Any:
    kind = type(value)
    if kind in (str, bool, int, type(None)):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is list:
        return [_to_plain(item, f"{path}[{n}]", canonical) for n, item in enumerate(value)]
    if kind is dict:
        return _dict_to_plain(value, path, canonical)
    if kind in (tuple, set, frozenset):
        items = [_to_plain(item, f"{path}[{n}]", canonical) for n, item in enumerate(value)]
        return {f"${kind.__name__}": items if kind is tuple else sorted(items, key=_sort_key)}
    write = _WRITERS.get(kind) or _WRITERS_BY_NAME.get((kind.__module__, kind.__name__))
    if write is None:
        raise NotPlain(value, path)
    return {f"${kind.__name__}": write(value)}


def _dict_to_plain(value: dict[Any, Any], path: str, canonical: bool) -> Any:
    if set(map(type, value)) <= {str}:
        return {
            f"${key}" if key.startswith("$") else key: _to_plain(item, f"{path}.{key}", canonical)
            for key, item in value.items()
        }
    pairs = [
        [_to_plain(key, f"{path}(key)", canonical), _to_plain(item, f"{path}[{key!r}]", canonical)]
        for key, item in value.items()
    ]
    return {"$dict": sorted(pairs, key=_sort_key) if canonical else pairs}


def _sort_key(item: Any) -> str:
    return json.dumps(item, sort_keys=True)


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, inner),) = value.items()
        if name.startswith("$") and not name.startswith("$$"):
            return _READERS[name](inner)
    return {name[1:] if name.startswith("$") else name: _from_plain(item) for name, item in value.items()}


def _all_from_plain(items: Iterable[Any]) -> list[Any]:
    return [_from_plain(item) for item in items]


def _write_moment(moment: datetime | time) -> Any:
    """ISO text, with `fold` and the zone's name where ISO text cannot express them. Otherwise a moment in the repeated
    hour at the end of summer time, or in Europe/Berlin, would come back as another moment or with a bare offset."""
    zone = _zone_name(moment.tzinfo)
    if zone:
        return [moment.replace(tzinfo=None).isoformat(), moment.fold, zone]
    return [moment.isoformat(), moment.fold, ""] if moment.fold else moment.isoformat()


def _zone_name(info: tzinfo | None) -> str:
    if info is None or type(info) is timezone:
        return ""
    from zoneinfo import ZoneInfo  # slow to import, and seldom needed

    return (info.key or "") if type(info) is ZoneInfo else ""


def _read_moment(kind: type[Moment], written: Any) -> Moment:
    if isinstance(written, str):
        return kind.fromisoformat(written)
    text, fold, zone = written
    moment = kind.fromisoformat(text).replace(fold=fold)
    if not zone:
        return moment
    from zoneinfo import ZoneInfo

    return moment.replace(tzinfo=ZoneInfo(zone))


_WRITERS: dict[type, Callable[[Any], Any]] = {
    bytes: lambda v: base64.b64encode(v).decode(),
    datetime: _write_moment,
    date: date.isoformat,
    time: _write_moment,
    timedelta: lambda v: [v.days, v.seconds, v.microseconds],
}

# Found by name: a program that has such a value has imported its module, and the others need not import it.
_WRITERS_BY_NAME: dict[tuple[str, str], Callable[[Any], Any]] = {("decimal", "Decimal"): str, ("uuid", "UUID"): str}


def _build_reader(module: str, name: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        return getattr(import_module(module), name)(text)

    return read


_READERS: dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$tuple": lambda v: tuple(_all_from_plain(v)),
    "$set": lambda v: set(_all_from_plain(v)),
    "$frozenset": lambda v: frozenset(_all_from_plain(v)),
    "$dict": lambda v: {_from_plain(key): _from_plain(item) for key, item in v},
    "$bytes": base64.b64decode,
    "$datetime": lambda v: _read_moment(datetime, v),
    "$date": date.fromisoformat,
    "$time": lambda v: _read_moment(time, v),
    "$timedelta": lambda v: timedelta(*v),
    "$Decimal": _build_reader("decimal", "Decimal"),
    "$UUID": _build_reader("uuid", "UUID"),
}
