"""Rules that are checked while a history runs: on every operation that the store carries out, whoever sent it; on every
message to the provider; and on every answer that an application gives.

The store under watch may itself be wrong: that is what an ablation of `core/moves.py` does. So nothing here calls it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from retrysafe.core.ops import Advance, Claim, ClaimReply, Complete, Forget, Op, Reap, Renew, Resolve, Suspect
from retrysafe.core.records import MAX_ENDED_TOKENS, Record
from retrysafe.core.states import SETTLED, State
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.heartbeat import Lease, current_lease
from retrysafe.engine.orphaned_claims import ORPHAN_LOOKUP_SECONDS
from retrysafe.errors import StoreError, StoreUnclear
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.simulation.application import ClientReply
from retrysafe.testing.simulation.history import History
from retrysafe.testing.simulation.hosts import Host, current_host
from retrysafe.testing.simulation.loop import SimulatedLoop
from retrysafe.testing.simulation.requests import REQUEST, ClientRequest

R = TypeVar("R")

CLOCK_TOLERANCE_SECONDS = 0.5
"""Clocks that run at different speeds (`Plan.drift`) may differ by this much over one lease."""

NOTHING_DONE = (b"StoreUnavailable", b"StoreUnreachable", b"store-unavailable")
"""Words of an answer that says: this request did nothing."""


class Sending(NamedTuple):
    """One message to the provider, when it was sent. `run` is the life of the record that it was sent for."""

    at: float
    purchase: str
    kind: str
    run: bytes


class Watch:
    """Stands before the records of a memory store, and looks at every change."""

    def __init__(
        self, records: MemoryStore, loop: SimulatedLoop, store_host: Host, history: History, broken: list[str]
    ) -> None:
        self.capabilities = records.capabilities
        self.sendings: list[Sending] = []
        self._records = records
        self._loop = loop
        self._store_host = store_host
        self._history = history
        self._broken = broken
        self._granted: dict[tuple[bytes, bytes, int], bytes] = {}
        self._fences: dict[bytes, dict[tuple[int, bytes], bytes]] = {}
        """The run for which each fence of a record was granted."""
        self._ended: dict[bytes, dict[bytes, None]] = {}
        """The tokens of each record's attempts that are over, in order. A record keeps the last eight (rule 13)."""
        self._advanced: dict[tuple[bytes, bytes], int] = {}
        """The number of the last advance of each attempt."""
        self._given_up: set[bytes] = set()
        """The tokens of attempts whose owner itself said that it does not know how they ended."""
        self._claimants: dict[bytes, ClientRequest] = {}
        """The request that sent each claim, by its token."""
        self._owners: dict[bytes, tuple[ClientRequest, float]] = {}
        """The request that was granted a token, and when last."""
        self._answered: dict[int, float] = {}
        """When each request was answered."""
        self._unclear_claims: set[bytes] = set()
        self._refused_claims: set[bytes] = set()
        """The tokens of claims of which a sending was not answered, and of which the last answer was a refusal or an
        error."""
        self._refused_at: dict[bytes, float] = {}
        """When a claim was refused that was not sent again since: from then on its caller has left it."""
        self._sent_tokens: set[bytes] = set()
        self._sent_requests: set[int] = set()

    # The store -------------------------------------------------------------------------------------

    def execute(self, op: Op[R]) -> R:
        record_id: bytes | None = getattr(op, "id", None)
        before = self._records._records.get(record_id) if record_id is not None else None
        now = time.time_ns() // 1000
        kept = list(self._records._records.values()) if isinstance(op, Reap) else []
        reply = self._records.execute(op)
        after = self._records._records.get(record_id) if record_id is not None else None
        if isinstance(op, Claim):
            self._watch_claim(op, reply, before, after, now)
        elif isinstance(op, Reap):
            self._watch_reaping(kept)
        elif before is not None and after is not before:
            self._watch_answer(op, before, after)
            self._watch_progress(op, before, after)
            self._watch_giving_up(op, before, after)
        if before is not None and (after is None or after.token != before.token or after.state in SETTLED):
            ended = self._ended.setdefault(before.id, {})
            ended.pop(before.token, None)  # a token that was granted again, beyond the last eight, ends again
            ended[before.token] = None
        return reply

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return [self.execute(op) for op in ops]

    def migrate(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is open."""

    def watch_sent_claim(self, op: Claim) -> None:
        """A claim is sent. Runs at the sender, and knows for which request."""
        request = REQUEST.get()
        self._refused_at.pop(op.token, None)
        if request is not None:
            self._claimants.setdefault(op.token, request)

    def watch_failed_claim(self, op: Claim, error: StoreError) -> None:
        """A sending of a claim ended in an error. Runs at the sender."""
        (self._unclear_claims if isinstance(error, StoreUnclear) else self._refused_claims).add(op.token)

    def watch_claim_reply(self, op: Claim, reply: ClaimReply) -> None:
        """A claim was answered. Runs at the sender."""
        if reply.granted:
            self._refused_claims.discard(op.token)
        else:
            self._refused_claims.add(op.token)
            self._refused_at[op.token] = self._loop.now

    def _watch_claim(self, op: Claim, reply: Any, before: Record | None, after: Record | None, now: int) -> None:
        assert isinstance(reply, ClaimReply)
        if not reply.granted or after is None:
            self._watch_refusal(op, before, now)
            return
        grant = (op.id, after.run, after.attempt)
        known = self._granted.setdefault(grant, op.token)
        if known != op.token:
            self._report("I1 single grant", f"attempt {after.attempt} of {op.key} was granted to two claims")
        if op.token in self._list_kept_tokens(op.id, before):
            self._report("I32 late copies", f"a late copy of a claim of {op.key} was granted to nobody")
        fences = self._fences.setdefault(op.id, {})
        if fences.setdefault((after.attempt, after.token), after.run) != after.run:
            self._report("I3 fences are new", f"a new life of {op.key} has the fence of an older one")
        request = self._claimants.get(op.token)
        if request is not None and (before is None or before.token != op.token or op.token not in self._owners):
            # Of a token that is granted again, beyond the last eight attempts (rule 13), the last grant counts.
            self._owners[op.token] = (request, self._loop.now)
        if before is None or before.token == op.token:
            return
        if before.state is State.CLAIMED and before.lease_until > now:
            self._report("I2 no grant while a lease is live", f"{op.key} was granted while its lease was live")
        if before.state is State.UNCERTAIN:
            self._report("I2 no grant of what is uncertain", f"{op.key} was granted although nobody knows how it ended")
        if before.state is State.COMPLETED and not before.expired(now):
            self._report("I5 write-once", f"{op.key} was granted again after it was completed")
        if before.fingerprint != op.fingerprint and not before.expired(now) and not op.accepts(before.fingerprint):
            self._report("I8 mismatch", f"{op.key} was granted to another request")
        if after.run == before.run and after.attempt != before.attempt + 1:
            self._report("I3 attempts grow", f"{op.key} went from attempt {before.attempt} to {after.attempt}")

    def _list_kept_tokens(self, record_id: bytes, found: Record | None) -> list[bytes]:
        """The tokens that a record must not grant again (rule 13): of its last eight attempts that were taken over, and
        its own, if that attempt is over."""
        ended = self._ended.get(record_id, {})
        own = [found.token] if found is not None and found.token in ended and found.state in SETTLED else []
        return [token for token in ended if token not in own][-MAX_ENDED_TOKENS:] + own

    def _watch_refusal(self, op: Claim, before: Record | None, now: int) -> None:
        if before is None or op.resumes or before.state not in SETTLED or not before.expired(now):
            return
        if op.token != before.token and op.token not in before.ended:
            self._report("I12 expired means new", f"a claim of {op.key} was refused although its record has expired")

    def _watch_answer(self, op: Op[Any], before: Record, after: Record | None) -> None:
        if after is None:
            self._report("I13 nothing is lost", f"{type(op).__name__} removed the record of {before.key}")
            return
        if before.answer is not None and after.answer != before.answer and not isinstance(op, Forget):
            self._report("I5 write-once", f"{type(op).__name__} replaced the answer of {before.key}")
        fence = getattr(op, "fence", None)
        changed = after != before
        if changed and fence is not None and (fence.attempt, fence.token) != (before.attempt, before.token):
            self._report("I4 fence", f"{type(op).__name__} of another attempt changed {before.key}")
        if changed and before.state is State.COMPLETED and isinstance(op, Complete | Resolve):
            self._report("I5 write-once", f"{type(op).__name__} changed {before.key}, which was completed")

    def _watch_progress(self, op: Op[Any], before: Record, after: Record | None) -> None:
        if after is None or after == before:
            return
        if isinstance(op, Renew) and after.lease_until < before.lease_until:
            self._report("I32 late copies", f"a late renewal shortened the lease of {after.key}")
        if not isinstance(op, Advance):
            return
        # By its number: what was in progress may well return to what it was, as when an undo could not begin.
        last = self._advanced.get((after.id, after.token), 0)
        if op.number <= last:
            self._report("I32 late copies", f"a late advance moved {after.key} back to {after.point!r}")
        self._advanced[after.id, after.token] = max(op.number, last)

    def _watch_giving_up(self, op: Op[Any], before: Record, after: Record | None) -> None:
        """An owner that has given up is not brought back by what it sent before. A person is asked about what may have
        happened, not about what never began."""
        if after is None or after == before:
            return
        if isinstance(op, Suspect):
            if after.state is State.UNCERTAIN and before.state is State.CLAIMED and op.lapsed_only:
                now = self._store_micros()
                if before.lease_until > now:
                    self._report(
                        "I2 the living are not suspected", f"the sweeper marked {after.key}, whose lease is live"
                    )
            if not op.lapsed_only:
                self._given_up.add(before.token)
        elif isinstance(op, Renew | Advance) and before.token in self._given_up:
            self._report("I32 late copies", f"a late {type(op).__name__} brought {after.key} back, which was given up")
        elif isinstance(op, Resolve) and not before.point and self._is_burnt(before):
            self._report("I32 nothing is burnt", f"a person was asked about {before.key}, of which nothing ever ran")

    def _is_burnt(self, record: Record) -> bool:
        """Whether a person is asked for nothing. A claim that was granted, and under which nothing was sent, is given
        back by the process that asked for it, whenever it hears of the grant or wakes up. Three grants are nobody's:

        - the process died, or is still stopped: nobody else can know that nothing ran;
        - a copy of the claim arrived when its caller had left, after the last look (ORPHAN_LOOKUP_SECONDS), also if its
          token had been granted and ended before, beyond the last eight attempts (rule 13);
        - the store had answered every sending, and granted none (another owner had the key, or nothing was done): there
          is no copy to wait for, unless the network itself made one.
        """
        owner = self._owners.get(record.token)
        if owner is None or record.token in self._sent_tokens:
            return False
        request, granted_at = owner
        if not request.process.alive or request.process.frozen_until > self._loop.now:
            return False
        if record.token not in self._unclear_claims and record.token in self._refused_claims:
            return False
        # A handler may go on after the refusal of its claim: it follows a redirect, for one.
        answered_at = self._answered.get(request.number, granted_at)
        left_at = min(answered_at, self._refused_at.get(record.token, answered_at))
        return granted_at - left_at < sum(ORPHAN_LOOKUP_SECONDS)

    def _watch_reaping(self, before: list[Record]) -> None:
        for record in before:
            if record.id not in self._records._records and record.state not in SETTLED:
                self._report("I13 nothing is lost", f"{record.key} was reaped while it was {record.state.value}")

    # The provider ----------------------------------------------------------------------------------

    def watch_sending(self, purchase: str, kind: str, seconds: float) -> None:
        """Just before a message to the provider. Runs at the sender. The sender must own the record at this moment, and
        a foreign step must own it until the call is over, for the `seconds` that it declares (I33)."""
        lease, request = current_lease(), REQUEST.get()
        record = self._records._records.get(lease.id) if lease is not None else None
        self._history.note(
            *(self._loop.now, current_host().name, "sends", purchase),
            kind=kind,
            request=request.number if request is not None else 0,
            attempt=lease.fence.attempt if lease is not None else 0,
        )
        if lease is None:
            return  # a call of the application's own, under none of our promises
        if request is not None:
            self._sent_requests.add(request.number)
        run = self._fences.get(lease.id, {}).get((lease.fence.attempt, lease.fence.token), b"")
        self._sent_tokens.add(lease.fence.token)
        self.sendings.append(Sending(self._loop.now, purchase, kind, run))
        for rule, what in self._find_wrong_sending(lease, record, seconds):
            self._report(rule, f"{current_host().name} {what} ({kind} of {purchase})")

    def _find_wrong_sending(self, lease: Lease, record: Record | None, seconds: float) -> Iterator[tuple[str, str]]:
        if (lease.fence.attempt, lease.fence.token) not in self._fences.get(lease.id, {}):
            yield "I1 single grant", "calls the provider without a grant"
        elif record is None or record.token != lease.fence.token or record.state in SETTLED:
            yield (
                "I33 lease of the caller",
                "calls the provider although another attempt owns the record, or it is over",
            )
        else:
            left = (record.lease_until - self._store_micros()) / SECOND_MICROS + CLOCK_TOLERANCE_SECONDS
            if left < 0 or record.state is not State.CLAIMED:
                yield "I33 lease of the caller", "calls the provider after its lease is over"
            elif "@" in record.target and left < seconds:
                yield "I33 a call fits its lease", f"begins a call of {seconds:g} s with {left:.1f} s of its lease left"

    def _store_micros(self) -> int:
        return int(self._store_host.wall(self._loop.now) * 1e6)

    # The application ---------------------------------------------------------------------------------

    def watch_answer(self, request: ClientRequest, reply: ClientReply) -> None:
        """An application answers a request. What it says must be true at this moment, and stored (I7)."""
        status, body = reply.status, reply.body
        self._answered[request.number] = self._loop.now
        at = (self._loop.now, request.host, "answers", request.purchase)
        self._history.note(*at, status=status, body=body[:60], request=request.number)
        if body == b"LeaseLost" and self._has_one_attempt(request):
            self._report("I11 own success is recognised", f"{request.purchase} was told that it lost its only attempt")
        said = body if body.startswith(b"{") else body.partition(b":")[0]  # a problem document, or an error's name
        if any(word in said for word in NOTHING_DONE) and request.number in self._sent_requests:
            self._report("told the truth", f"{request.purchase} was told that nothing was done, and it has sent")
        if status < 300:
            self._watch_told(request, status, body)

    def _find_records(self, request: ClientRequest) -> list[Record]:
        keys = (request.purchase, f'{{"{request.purchase}"}}', f"key-{request.purchase}")
        found = [record for record in self._records._records.values() if record.key in keys]
        return [record for record in found if record.namespace == request.namespace]

    def _has_one_attempt(self, request: ClientRequest) -> bool:
        found = self._find_records(request)
        return bool(found) and all(each.attempt == 1 and each.state is State.COMPLETED for each in found)

    def _watch_told(self, request: ClientRequest, status: int, body: bytes) -> None:
        found = self._find_records(request)
        settled = [record for record in found if record.state is State.COMPLETED and record.answer is not None]
        if found and not settled:
            self._report("I7 told is stored", f"{request.purchase} was told {status}, and nothing is stored")
        answers = [record.answer for record in settled if record.kind == "http" and "@" not in record.target]
        if answers and not any(each and (each.status, each.body) == (status, body) for each in answers):
            self._report("I7 told is stored", f"{request.purchase} was told something else than what is stored")

    def _report(self, rule: str, what: str) -> None:
        self._broken.append(f"{rule}: {what} at {self._loop.now:.3f} s")
        self._history.note(self._loop.now, current_host().name, "breaks", rule=rule, why=what)
