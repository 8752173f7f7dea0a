"""`mode="observe"`: find out what would have happened, in a namespace of its own, and refuse nothing."""

from __future__ import annotations

import logging
from dataclasses import replace

from retrysafe.core.keys import Key
from retrysafe.core.ops import Complete
from retrysafe.core.outcomes import Execute, Mismatch, Outcome, Replay
from retrysafe.core.records import Answer
from retrysafe.engine.effects import Flow
from retrysafe.engine.events import Events
from retrysafe.engine.guard import Task
from retrysafe.engine.heartbeat import Lease
from retrysafe.errors import KeyProblem, ScopeRequired, StoreError
from retrysafe.web.census import Sent
from retrysafe.web.claiming import taken
from retrysafe.web.exchange import Exchange
from retrysafe.web.keyheader import read_key
from retrysafe.web.telling import described

_log = logging.getLogger("retrysafe.web")


def sent_key(exchange: Exchange, scope: str) -> Key | None:
    """The key as it would be read; what would be refused is counted."""
    exchange.scope = scope
    try:
        value = read_key(exchange.lines, exchange.settings.key_rule)
        exchange.count("missing" if value is None else "keyed", scope)
        return None if value is None else Key(value, scope)
    except (KeyProblem, ScopeRequired) as error:
        exchange.count("malformed" if isinstance(error, KeyProblem) else "would_refuse", scope)
        return None


def began(exchange: Exchange, task: Task) -> Flow[None]:
    """The request is about to run: note what a claim would have said."""
    quiet = task.policy.but(busy="conflict", abandoned="rerun")
    task = replace(task, namespace=f"observed:{task.namespace}", policy=quiet)
    claim = task.claim()
    try:
        outcome: Outcome = yield from taken(claim, task, Events())
    except StoreError as error:
        _log.warning("%s: observing failed: %s", exchange.target, described(error, task.key.value, task.key.scope))
        return
    if isinstance(outcome, Execute):
        exchange.observed = Lease(claim.id, task.key.value, outcome.fence, outcome.until)
    exchange.count(_would(outcome), task.key.scope)


def ended(exchange: Exchange) -> Flow[None]:
    """It ran: whoever sends the key from now on would get a replay."""
    lease, exchange.observed = exchange.observed, None
    if lease is not None:
        try:
            yield Complete(lease.id, lease.fence, Answer(200, gone="unstorable"))
        except StoreError as error:
            _log.warning("%s: observing failed: %s", exchange.target, described(error, exchange.scope, *exchange.lines))


def _would(outcome: Outcome) -> Sent:
    if isinstance(outcome, Execute):
        return "would_run"
    if isinstance(outcome, Replay):
        return "would_replay"
    return "would_mismatch" if isinstance(outcome, Mismatch) else "would_conflict"
