"""The status URL of `busy="accepted"` and of `start="worker"`: where a client that was told 202 looks for the answer.

The token names the record's id and its `run`, sixteen random bytes that nobody can guess. It is not enough to hold it:
the record must also be the asker's own. A wrong token, another account's and an expired one are answered alike (S22).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from typing import NamedTuple

from retrysafe.core.ops import Lookup, LookupReply
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.engine.effects import Flow
from retrysafe.errors import CorruptRecord, StoreError
from retrysafe.web import problems
from retrysafe.web.capture import NO_STORE, Response, to_replay
from retrysafe.web.settings import Settings

ID = 32
RUN = 16


class Token(NamedTuple):
    id: bytes
    run: bytes

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self.id + self.run).decode()

    @classmethod
    def parse(cls, text: str) -> Token | None:
        try:
            raw = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        return cls(raw[:ID], raw[ID:]) if len(raw) == ID + RUN else None


def accepted(settings: Settings, mount: str, record: Record, target: str) -> Response:
    """202: somebody is at it, or will be, and this is where its answer will be."""
    address = f"{mount}{settings.status_path}/{Token(record.id, record.run)}" if settings.serves_status else ""
    return in_progress(address, settings.durations.retry_after(target, settings.policy.lease))


def in_progress(address: str = "", wait: int = 1) -> Response:
    """202. Where no address is served, sending the same key again is how to ask."""
    body: dict[str, object] = {"state": "in_progress", "retry_same_key": True}
    headers = [("content-type", "application/json"), ("retry-after", str(wait)), NO_STORE]
    if address:
        body["status_url"] = address
        headers.append(("location", address))
    return Response.own(202, headers, json.dumps(body).encode())


def looked_up(settings: Settings, mount: str, text: str, principal: str) -> Flow[Response]:
    """What the status URL answers: 202 while it runs, then the stored answer itself."""
    token = Token.parse(text)
    try:
        found: LookupReply = yield Lookup(token.id if token else bytes(ID))
    except StoreError:
        return problems.respond(problems.UNAVAILABLE, settings.codes, settings.docs, retry_after=1)
    record = found.record
    if token is None or record is None or not _theirs(record, token, principal) or record.expired(found.now):
        return problems.respond(problems.NOT_FOUND, settings.codes, settings.docs, status=404)
    try:
        return _shown(settings, mount, record, found.now)
    except CorruptRecord:
        return problems.respond(problems.CORRUPT, settings.codes, settings.docs)


def _theirs(record: Record, token: Token, principal: str) -> bool:
    return hmac.compare_digest(record.run, token.run) and hmac.compare_digest(
        record.scope.encode(), principal.encode("utf-8", "replace")
    )


def _shown(settings: Settings, mount: str, record: Record, now: int) -> Response:
    if record.state is State.COMPLETED and record.answer is not None:
        if record.answer.gone:
            return problems.respond(problems.GONE, settings.codes, settings.docs)
        return to_replay(record, at_its_own_address=False)
    if record.state is State.UNCERTAIN or (record.lapsed(now) and record.on_lapse == "uncertain"):
        return problems.respond(problems.UNKNOWN, settings.codes, settings.docs)
    # An operation that nobody is at is not over: it waits for the worker, which goes on where it stopped.
    if record.on_lapse == "resume" or (record.state is State.CLAIMED and not record.lapsed(now)):
        return accepted(settings, mount, record, record.target)
    body = json.dumps({"state": "released", "retry_same_key": True}).encode()
    return Response.own(200, [("content-type", "application/json"), NO_STORE], body)
