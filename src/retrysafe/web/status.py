"""The status URL of `busy="accepted"` and `start="worker"`: here a client that got 202 finds the answer.

The token contains the record's id and its `run`, sixteen random bytes that cannot be guessed. The token alone is not
enough: the record must also belong to the principal. A wrong token, another account's token and an expired one all get
the same 404 (S22).
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
from retrysafe.web.accepted_routes import warn_without_status
from retrysafe.web.capture import NO_STORE, Response, build_replay
from retrysafe.web.settings import Settings

ID_BYTES = 32
RUN_BYTES = 16


class StatusToken(NamedTuple):
    id: bytes
    run: bytes

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(self.id + self.run).decode()

    @classmethod
    def parse(cls, text: str) -> StatusToken | None:
        try:
            raw = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        return cls(raw[:ID_BYTES], raw[ID_BYTES:]) if len(raw) == ID_BYTES + RUN_BYTES else None


def build_accepted_response(settings: Settings, mount: str, record: Record, target: str) -> Response:
    """202: the work is running or queued. The status URL will have its answer."""
    address = f"{mount}{settings.status_path}/{StatusToken(record.id, record.run)}" if settings.serves_status else ""
    if not address:
        warn_without_status(settings, [target])
    return build_in_progress_response(address, settings.durations.retry_after(target, settings.policy.lease))


def build_in_progress_response(address: str = "", wait: int = 1) -> Response:
    """202. Without a status URL the client sends the same key again to get the answer."""
    body: dict[str, object] = {"state": "in_progress", "retry_same_key": True}
    headers = [("content-type", "application/json"), ("retry-after", str(wait)), NO_STORE]
    if address:
        body["status_url"] = address
        headers.append(("location", address))
    return Response.build(202, headers, json.dumps(body).encode())


def status_flow(settings: Settings, mount: str, text: str, principal: str) -> Flow[Response]:
    """The answer of the status URL: 202 while the work runs, then the stored answer."""
    token = StatusToken.parse(text)
    try:
        found: LookupReply = yield Lookup(token.id if token else bytes(ID_BYTES))
    except StoreError:
        return problems.build_problem_response(problems.UNAVAILABLE, settings.codes, settings.docs, retry_after=1)
    record = found.record
    if token is None or record is None or not _is_owner(record, token, principal) or record.expired(found.now):
        return problems.build_problem_response(problems.NOT_FOUND, settings.codes, settings.docs)
    try:
        return _build_status_response(settings, mount, record, found.now)
    except CorruptRecord:
        return problems.build_problem_response(problems.CORRUPT, settings.codes, settings.docs)


def _is_owner(record: Record, token: StatusToken, principal: str) -> bool:
    return hmac.compare_digest(record.run, token.run) and hmac.compare_digest(
        record.scope.encode(), principal.encode("utf-8", "replace")
    )


def _build_status_response(settings: Settings, mount: str, record: Record, now: int) -> Response:
    if record.state is State.COMPLETED and record.answer is not None:
        if record.answer.gone:
            return problems.build_problem_response(problems.GONE, settings.codes, settings.docs)
        return build_replay(record, at_original_url=False)
    if record.state is State.UNCERTAIN or (record.lapsed(now) and record.on_lapse == "uncertain"):
        return problems.build_problem_response(problems.UNKNOWN, settings.codes, settings.docs)
    # An operation without an owner is not finished: the worker will resume it.
    if record.on_lapse == "resume" or (record.state is State.CLAIMED and not record.lapsed(now)):
        return build_accepted_response(settings, mount, record, record.target)
    body = json.dumps({"state": "released", "retry_same_key": True}).encode()
    return Response.build(200, [("content-type", "application/json"), NO_STORE], body)
