"""Codecs and events: small parts of the engine."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest

from retrysafe.core.records import Answer
from retrysafe.engine import codecs
from retrysafe.engine.codecs import JsonCodec, decode_answer, encode_exception, encode_result
from retrysafe.engine.events import Events, RecordEvent
from retrysafe.errors import CorruptRecord

ID = b"\xab" * 32


@pytest.mark.parametrize("value", [None, 0, False, "", [], {}, (), "\ud800", {"a": (1, b"x")}], ids=repr)
def test_a_result_comes_back_exactly(value: Any) -> None:
    answer = encode_result(JsonCodec(), value)
    back = decode_answer(JsonCodec(), answer, ID)
    assert (back, type(back)) == (value, type(value))
    assert answer.status == codecs.RETURNED_STATUS


class Loud:
    """A codec of somebody's own."""

    media_type = "text/x-loud"

    def encode(self, value: Any) -> bytes:
        return str(value).upper().encode()

    def decode(self, data: bytes) -> Any:
        return data.decode()


def test_a_codec_of_one_s_own() -> None:
    answer = encode_result(Loud(), "x")
    assert answer == Answer(200, b"X", [("content-type", "text/x-loud")])
    assert decode_answer(Loud(), answer, ID) == "X"


def test_a_record_of_another_codec_is_not_misread() -> None:
    with pytest.raises(CorruptRecord, match=r"text/x-loud.*vnd\.retrysafe\.value"):
        decode_answer(JsonCodec(), encode_result(Loud(), "x"), ID)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b'{"$unknown":1}', b'{"$bytes":1}', b'{"$timedelta":"x"}', b"[" * 100_000]
)
def test_a_body_that_does_not_decode_is_a_corrupt_record(body: bytes) -> None:
    with pytest.raises(CorruptRecord, match="does not decode"):
        decode_answer(JsonCodec(), Answer(200, body, [("content-type", JsonCodec.media_type)]), ID)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Odd(Exception):
    def __str__(self) -> str:
        return "\ud800 odd"


def test_a_failure_is_stored_as_its_name_and_words() -> None:
    answer = encode_exception(ValueError("no"))
    assert answer.status == codecs.RAISED_STATUS
    assert json.loads(answer.body) == {"type": "ValueError", "message": "no"}


@pytest.mark.parametrize(("error", "expected"), [(Mute(), "cannot be had"), (Odd(), "\ud800 odd")])
def test_every_exception_can_be_stored(error: Exception, expected: str) -> None:
    assert expected in decode_answer(JsonCodec(), encode_exception(error), ID)["message"]


# Events ------------------------------------------------------------------------------------------


def test_events_are_counted_and_told() -> None:
    seen: list[RecordEvent] = []
    events = Events(seen.append)
    events.subscribe(seen.append)
    events.emit("new", ID, "POST /x")
    events.emit("new", ID)
    assert events.counts() == {"new": 2}
    assert seen[0] == RecordEvent("new", "POST /x", ID.hex())
    assert len(seen) == 4


def test_a_failing_hook_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: RecordEvent) -> None:
        raise RuntimeError("the hook is broken")

    seen: list[RecordEvent] = []
    events = Events(broken)
    events.subscribe(seen.append)
    with caplog.at_level(logging.ERROR, "retrysafe"):
        events.emit("completed", ID)
    assert len(seen) == 1
    assert events.counts() == {"completed": 1}
    assert "the hook is broken" in caplog.text


def test_counting_is_exact_with_many_threads() -> None:
    events = Events()
    threads = [threading.Thread(target=lambda: [events.emit("new", ID) for _ in range(500)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert events.counts() == {"new": 4000}


def test_counts_are_a_copy() -> None:
    events = Events()
    events.counts()["new"] = 7
    assert events.counts() == {}
