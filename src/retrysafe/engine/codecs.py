"""Codecs: how the result of a function is stored and read back. Never pickle: reading a store must not run code."""

from __future__ import annotations

import typing
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

from retrysafe.core import values
from retrysafe.core.records import Answer
from retrysafe.errors import CorruptRecord

RETURNED_STATUS = 200
RAISED_STATUS = 500


class Codec(Protocol):
    """Encodes a value into bytes and back. `media_type` names the format and is stored with the record."""

    @property
    def media_type(self) -> str: ...
    def encode(self, value: Any) -> bytes: ...
    def decode(self, data: bytes) -> Any: ...


_TYPED = b'{"$typed":'
"""Prefix of a value that was stored by its fields. No user's key is written as `$typed`: core/values.py escapes it."""


class JsonCodec:
    """JSON without loss: None, falsy values, tuples, bytes, dates, decimals and UUIDs come back as they were, and dicts
    in their own order."""

    media_type = "application/vnd.retrysafe.value+json"

    def encode(self, value: Any) -> bytes:
        return values.dumps_in_order(value).encode("utf-8", "surrogatepass")

    def decode(self, data: bytes) -> Any:
        """The value. One that a person gave (`encode_given_result`) has a prefix, and is plain data here."""
        plain = data[len(_TYPED) : -1] if data.startswith(_TYPED) else data
        return values.loads(plain.decode("utf-8", "surrogatepass"))


class TypedCodec(JsonCodec):
    """JsonCodec, and values with fields: pydantic models, dataclasses, msgspec structs, attrs classes, named tuples and
    enums are stored by their fields and come back as the type of the annotation (`TypedCodec(list[Order])`).

    Plain data stays as it is, whatever the annotation says.

    A field marked `exclude=True` is stored only with `sealed=True`: pass it where a key ring is set.
    """

    def __init__(self, annotation: Any, *, sealed: bool = False) -> None:
        self._given = annotation
        self._sealed = sealed

    @cached_property
    def annotation(self) -> Any:
        return self._given

    def encode(self, value: Any) -> bytes:
        try:
            return super().encode(value)
        except values.NotPlain:
            from retrysafe.engine import typed  # here, not above: plain values do not need it

            text = typed.dump_in_order(value, typed.secrets_rule(self._sealed))
            self._check_round_trip(value, text, typed.load(text, self.annotation))
            return _TYPED + text.encode("utf-8", "surrogatepass") + b"}"

    def decode(self, data: bytes) -> Any:
        if not data.startswith(_TYPED):
            return super().decode(data)
        from retrysafe.engine import typed

        return typed.load(data[len(_TYPED) : -1].decode("utf-8", "surrogatepass"), self.annotation)

    def _check_round_trip(self, value: Any, text: str, back: Any) -> None:
        """Check now that the result comes back as it was: on a replay the error would come too late."""
        from retrysafe.engine import typed

        if not typed.has_same_types(value, back) or typed.dump_in_order(back, typed.secrets_rule(self._sealed)) != text:
            raise TypeError(
                f"this {type(value).__qualname__} would come back as something else: the annotation is "
                f"{self.annotation!r}; annotate the function with what it returns"
            )


class ResultCodec(TypedCodec):
    """The default codec of a function: its return annotation is the type that comes back."""

    def __init__(self, function: Callable[..., Any], *, sealed: bool = False) -> None:
        super().__init__(None, sealed=sealed)
        self._function = function

    @cached_property
    def annotation(self) -> Any:
        """Read at first use: a name in the annotation may be defined only after the function."""
        try:
            return typing.get_type_hints(self._function).get("return")
        except Exception:  # a name that only the type checker knows: then only plain results can be stored
            return None


def encode_result(codec: Codec, value: Any, limit: int | None = None) -> Answer:
    """A result as a stored answer. Above the limit it is a tombstone: only the first caller gets the result."""
    body = codec.encode(value)
    if limit is not None and len(body) > limit:
        return Answer(RETURNED_STATUS, gone="too_large")
    return Answer(RETURNED_STATUS, body, [("content-type", codec.media_type)])


def encode_given_result(data: bytes) -> Answer:
    """The result that a person gives in JSON, for a function that nobody calls here: it comes back as the type of the
    function's annotation. Raises ValueError if it is not JSON, or not in the notation of core/values.py."""
    try:
        text = values.dumps_in_order(values.loads(data))
    except KeyError as error:
        raise ValueError(f"{error} is not one of the names that begin with $ in a stored value") from None
    except Exception as error:  # of JSON, or of a reader that cannot use what stands behind its name
        raise ValueError(f"it cannot be read ({type(error).__name__}: {error})") from error
    body = _TYPED + text.encode("utf-8", "surrogatepass") + b"}"
    return Answer(RETURNED_STATUS, body, [("content-type", JsonCodec.media_type)])


def encode_exception(error: BaseException) -> Answer:
    """An exception as a stored answer: its class name and its message, never the object."""
    try:
        message = str(error)
    except Exception as broken:  # an exception whose text fails was raised all the same
        message = f"(its text cannot be had: {type(broken).__qualname__})"
    stored = {"type": type(error).__qualname__, "message": str.__str__(message)}
    return Answer(RAISED_STATUS, JsonCodec().encode(stored), [("content-type", JsonCodec.media_type)])


def decode_answer(codec: Codec, answer: Answer, record_id: bytes) -> Any:
    """Decode a stored answer. Raises CorruptRecord if the codec cannot read it."""
    stored = dict(answer.headers).get("content-type", "")
    if stored != codec.media_type:
        raise CorruptRecord(
            record_id, f"it was stored as {stored!r}, but the function's codec reads {codec.media_type!r}"
        )
    try:
        return codec.decode(answer.body)
    except Exception as error:  # a user's codec may raise anything
        raise CorruptRecord(record_id, f"its result does not decode ({type(error).__name__}: {error})") from error
