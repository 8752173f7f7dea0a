"""`mode="observe"`: count what would have happened, with records in a namespace of their own. Nothing is refused."""

from __future__ import annotations

import logging
from dataclasses import replace

from retrysafe.core.keys import Key, observed_namespace
from retrysafe.core.ops import Complete
from retrysafe.core.outcomes import Execute, Mismatch, Outcome, Replay
from retrysafe.core.records import Answer
from retrysafe.engine.effects import Flow
from retrysafe.engine.events import Events
from retrysafe.engine.guard import Task
from retrysafe.engine.heartbeat import Lease
from retrysafe.errors import KeyProblem, ScopeRequired, StoreError
from retrysafe.web.claim_flows import claim_interruptibly
from retrysafe.web.exchange import Exchange
from retrysafe.web.key_header import read_key
from retrysafe.web.key_usage import UsageKind
from retrysafe.web.problems import describe_error

_log = logging.getLogger("retrysafe.web")


def read_observed_key(exchange: Exchange, scope: str) -> Key | None:
    """The key, or None. A key that would be refused is counted."""
    exchange.scope = scope
    try:
        value = read_key(exchange.key_lines, exchange.settings.key_rule)
        exchange.count_usage("missing" if value is None else "keyed", scope)
        return None if value is None else Key(value, scope)
    except (KeyProblem, ScopeRequired) as error:
        exchange.count_usage("malformed" if isinstance(error, KeyProblem) else "would_refuse", scope)
        return None


_NO_EVENTS = Events()
"""An observed request is not protected, so its claim is no event."""


def begin_observation(exchange: Exchange, task: Task) -> Flow[None]:
    """Before the request runs: count what its claim would have returned."""
    quiet = task.policy.replace(busy="conflict", abandoned="rerun")
    task = replace(task, namespace=observed_namespace(task.namespace), policy=quiet)
    claim = task.build_claim()
    try:
        outcome: Outcome = yield from claim_interruptibly(claim, task, _NO_EVENTS)
    except StoreError as error:
        _log.warning("%s: observing failed: %s", exchange.target, describe_error(error, task.key.value, task.key.scope))
        return
    if isinstance(outcome, Execute):
        exchange.observation_lease = Lease(claim.id, task.key.value, outcome.fence, outcome.until)
    exchange.count_usage(_predict_usage(outcome), task.key.scope)


def end_observation(exchange: Exchange) -> Flow[None]:
    """After the request ran: from now on a request with this key counts as a replay."""
    lease, exchange.observation_lease = exchange.observation_lease, None
    if lease is not None:
        try:
            yield Complete(lease.id, lease.fence, Answer(200, gone="unstorable"))
        except StoreError as error:
            _log.warning(
                "%s: observing failed: %s", exchange.target, describe_error(error, exchange.scope, *exchange.key_lines)
            )


def _predict_usage(outcome: Outcome) -> UsageKind:
    if isinstance(outcome, Execute):
        return "would_run"
    if isinstance(outcome, Replay):
        return "would_replay"
    return "would_mismatch" if isinstance(outcome, Mismatch) else "would_conflict"
