"""The middleware: fingerprints, what is stored and replayed, withdrawn claims, tenants."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from retrysafe.core import judge as judging
from retrysafe.core import keys as keying
from retrysafe.core.fingerprint import fingerprint_body
from retrysafe.core.ops import Claim, Release
from retrysafe.core.records import Fingerprint
from retrysafe.core.states import State
from retrysafe.engine import guard, orphaned_claims
from retrysafe.engine.effects import LeaveClaim
from retrysafe.web import exchange as exchanging
from retrysafe.web import fingerprints, settlement
from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.web.asgi_answer import RESPONSE_BODY, AnswerSender
from retrysafe.web.capture import DroppedHeaders
from retrysafe.web.exchange import Exchange
from retrysafe.web.exchange_context import ResponseReady
from retrysafe.web.sync_async import AsyncExchange
from tests.simulation.ablations.base import Ablation, Situation, always, change, substitute, together
from tests.simulation.scenarios.web import WEB

ONE = "one effect"
LATER: set[asyncio.Future[Any]] = set()
"""What is stored when the answer is gone. asyncio keeps only weak references."""
PLAIN = Situation(WEB, ("plain",))


def send_first(original: Any) -> Any:
    """The answer goes out before it is stored."""

    async def settle_answer(self: Any, body: bytes) -> None:
        exchange, start = self._exchange, self._start
        settling = exchange.settle(exchange.settle_answered(start["status"], self._headers, body))
        await self._send(self._begin(start))
        await self._finish({"type": RESPONSE_BODY, "body": body, "more_body": False})
        LATER.add(asyncio.ensure_future(settling))

    return settle_answer


def serialise_again(original: Any) -> Any:
    """What is replayed is read and written once more."""

    def build_replay(record: Any, **options: Any) -> Any:
        response = original(record, **options)
        try:
            return response._replace(body=json.dumps(json.loads(response.body), separators=(",", ":")).encode())
        except ValueError:
            return response

    return build_replay


def release_instead(original: Any) -> Any:
    """An answer that cannot be kept leaves a free key."""

    def settle_tombstone(self: Any, code: int, gone: Any) -> Any:
        return (yield from self.give_back_flow("too large"))

    return settle_tombstone


def run_without_the_store(original: Any) -> Any:
    """If the store does not answer, the application runs unprotected."""

    async def claim(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await original(self, *args, **kwargs)
        except ResponseReady:
            if self.response is None or self.response.status != 503:
                raise
            self.response = None
            return None

    return claim


def look_at_progress_first(original: Any) -> Any:
    def judge(op: Claim, reply: Any) -> Any:
        record = reply.record
        if not reply.granted and record is not None and record.state is not State.COMPLETED:
            return judging.judge_refused(record, reply.now)
        return original(op, reply)

    return judge


def hash_nothing(original: Any) -> Any:
    return lambda view, route, chunks: Fingerprint("none", bytes(32), 0)


def hash_the_body_only(original: Any) -> Any:
    return lambda view, route, chunks: Fingerprint(*fingerprint_body("application/octet-stream", chunks))


def compare_methods_as_they_come(original: Any) -> Any:
    async def call(self: Any, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] not in self._methods:
            from retrysafe.web.exchange import EXCHANGE

            return await self.app({**scope, EXCHANGE: None}, receive, send)
        return await original(self, scope, receive, send)

    return call


def withdraw_by_status(original: Any) -> Any:
    """A redirect counts as the router's, whoever made it."""

    def is_framework_refusal(self: Any, code: int) -> bool:
        self._withdraws = 300 <= code < 400
        return bool(self._withdraws) or bool(original(self, code))

    return is_framework_refusal


def leave_out_the_scope(original: Any) -> Any:
    return lambda kind, namespace, scope, value: original(kind, namespace, "", value)


def check_no_owner(original: Any) -> Any:
    return lambda record, task: None


def encode_path(original: Any) -> Any:
    """An escaped slash is a slash."""
    return lambda raw, path: None


def begin_anyway(original: Any) -> Any:
    """The application begins, whatever has become of its lease."""

    async def check_late_start(self: AsyncExchange, grant: Any) -> None:
        return None

    return check_late_start


def only_release(original: Any) -> Any:
    """A first attempt under which nothing ran binds its key to its request."""

    def release_record(record: Any) -> Any:
        if record is None or record.attempt > 1 or record.point:
            return (yield from original(record))
        note = orphaned_claims.ORPHANED_NOTE
        return (yield from orphaned_claims.send_until_answered(Release(record.id, record.fence, note)))

    return release_record


def only_release_unstarted(original: Any) -> Any:
    return guard.settle_released


def give_back_once(original: Any) -> Any:
    """A withdrawal that does not reach the store is not made up for."""

    def give_back_flow(self: Exchange, note: str) -> Any:
        flow = original(self, note)
        with contextlib.suppress(StopIteration):
            effect = next(flow)
            while not isinstance(effect, LeaveClaim):
                try:
                    reply = yield effect
                except Exception as error:
                    effect = flow.throw(error)
                else:
                    effect = flow.send(reply)
            flow.send(None)

    return give_back_flow


ABLATIONS = (
    Ablation(
        "an application begins however late",
        "I33 lease of the caller",
        substitute(AsyncExchange, "check_late_start", begin_anyway),
        Situation(kinds=("web",), plan=change(slow_hosts=3, freezes=4)),
    ),
    Ablation(
        "an answer is sent before it is stored",
        "I7 told is stored",
        substitute(AnswerSender, "_settle_answer", send_first),
    ),
    Ablation("a replay is written again", "I6 same answer", substitute(exchanging, "build_replay", serialise_again)),
    Ablation(
        "an answer that is too large frees its key",
        ONE,
        substitute(Exchange, "settle_tombstone", release_instead),
        Situation(WEB, ("large",)),
    ),
    Ablation(
        "without the store it runs unprotected",
        ONE,
        substitute(AsyncExchange, "claim_without_adopting", run_without_the_store),
        PLAIN,
    ),
    Ablation(
        "in progress is answered before mismatch",
        "I9 mismatch first",
        substitute(guard, "judge", look_at_progress_first),
        PLAIN,
    ),
    Ablation("no fingerprint", "I8 mismatch", substitute(exchanging, "fingerprint_request", hash_nothing), PLAIN),
    Ablation(
        "a fingerprint of the body alone",
        "I8 mismatch",
        substitute(exchanging, "fingerprint_request", hash_the_body_only),
        PLAIN,
    ),
    Ablation(
        "an escaped slash is a slash", "I8 mismatch", substitute(fingerprints, "find_exact_path", encode_path), PLAIN
    ),
    Ablation(
        "a lower-case method goes past",
        ONE,
        substitute(IdempotencyMiddleware, "__call__", compare_methods_as_they_come),
        Situation(WEB, ("lower",)),
    ),
    Ablation(
        "a router's redirect is stored",
        "I30 convergence",
        always(settlement, "should_withdraw", False),
        Situation(WEB, ("redirected",), change(senders=1)),
    ),
    Ablation(
        "a claim under which nothing ran binds its key",
        "I30 convergence",
        together(
            substitute(orphaned_claims, "release_record", only_release),
            substitute(guard, "settle_unstarted", only_release_unstarted),
        ),
        Situation(WEB, ("redirected",)),
    ),
    Ablation(
        "a withdrawal that is lost is not followed up",
        "I32 nothing is burnt",
        substitute(Exchange, "give_back_flow", give_back_once),
        Situation(WEB, ("redirected",)),
    ),
    Ablation(
        "an invalid body burns its key",
        "I30 convergence",
        always(settlement, "should_withdraw", False),
        Situation(WEB, ("corrected",), change(senders=1)),
    ),
    Ablation(
        "every redirect is withdrawn",
        ONE,
        substitute(Exchange, "_is_framework_refusal", withdraw_by_status),
        Situation(WEB, ("moved",)),
    ),
    Ablation(
        "cookies are stored",
        "S9 no cookies in replays",
        always(DroppedHeaders, "__contains__", False),
        Situation(WEB, ("cookie",)),
    ),
    Ablation(
        "one key for all tenants",
        "told the truth",
        together(
            substitute(keying, "record_id", leave_out_the_scope),
            substitute(guard, "record_id", leave_out_the_scope),
            substitute(exchanging, "_check_same_owner", check_no_owner),
        ),
        Situation(WEB, ("tenant",), change(purchases=2)),
    ),
)
