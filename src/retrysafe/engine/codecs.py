"""What is stored of a function's result, and how it comes back. Never pickle: a store is not code."""

from __future__ import annotations

from typing import Any, Protocol

from retrysafe.core import values
from retrysafe.core.records import Answer
from retrysafe.errors import CorruptRecord

RETURNED = 200
RAISED = 500


class Codec(Protocol):
    """Bytes out of a value and back. `media_type` names the format, so that a record says how to read it."""

    @property
    def media_type(self) -> str: ...
    def encode(self, value: Any) -> bytes: ...
    def decode(self, data: bytes) -> Any: ...


class JsonCodec:
    """JSON that loses nothing: None, falsy values, tuples, bytes, dates, decimals and UUIDs come back as they were."""

    media_type = "application/vnd.retrysafe.value+json"

    def encode(self, value: Any) -> bytes:
        return values.dumps(value).encode("utf-8", "surrogatepass")

    def decode(self, data: bytes) -> Any:
        return values.loads(data.decode("utf-8", "surrogatepass"))


def returned(codec: Codec, value: Any) -> Answer:
    """A result as a stored answer."""
    return Answer(RETURNED, codec.encode(value), [("content-type", codec.media_type)])


def raised(error: BaseException) -> Answer:
    """An exception as a stored answer: its name and words, never its object."""
    try:
        message = str(error)
    except Exception as broken:  # an exception that cannot say what it is was still raised
        message = f"(its text cannot be had: {type(broken).__qualname__})"
    told = {"type": type(error).__qualname__, "message": str.__str__(message)}
    return Answer(RAISED, JsonCodec().encode(told), [("content-type", JsonCodec.media_type)])


def read_back(codec: Codec, answer: Answer, record_id: bytes) -> Any:
    """The value a stored answer stands for."""
    stored = dict(answer.headers).get("content-type", "")
    if stored != codec.media_type:
        raise CorruptRecord(
            record_id, f"it was stored as {stored!r}, but the function's codec reads {codec.media_type!r}"
        )
    try:
        return codec.decode(answer.body)
    except Exception as error:  # a codec may be anybody's
        raise CorruptRecord(record_id, f"its result does not decode ({type(error).__name__}: {error})") from error
