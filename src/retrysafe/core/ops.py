"""The storage operations, as values. A store has two verbs over them: execute(op) and execute_many(ops). The operations
of the outbox are in jobs.py, what operators ask is in backlog.py.

Every operation may be sent again. It carries a token or a fence, by which the store recognises a second arrival. So
after an unclear failure the caller sends the same value once more, and the reply tells how it ended.

`now` is None in production: the store's own clock decides. Tests pass a number and never sleep.

To add an operation: a class here, its move in moves.py (which the memory store runs), what each store sends for it
(stores/sql, redis, mongo, dynamodb), and a case in testing/contract/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, dataclass_transform

from retrysafe.core.records import Answer, Fence, Fingerprint, Record
from retrysafe.core.states import OPEN, OnLapse, State

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


@dataclass_transform(frozen_default=True, eq_default=False)
def value_class(fields: type[T]) -> type[T]:
    """A class decorator: a dataclass whose fields are set once. Only the type checker refuses a second assignment. A
    check at run time would make each new object three to four times as expensive, and every request makes a handful.
    """
    return dataclass(slots=True, eq=False, repr=False)(fields)


class Op(Generic[R_co]):
    """An operation whose reply is an R. A value: compared, hashed and shown by its fields.

    The methods are written here, not generated for each class: two dozen sets of generated methods would be a fifth of
    the cost of importing retrysafe.
    """

    __slots__: tuple[str, ...] = ()

    def _field_values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Op) and other._field_values() == self._field_values()

    def __hash__(self) -> int:
        return hash((type(self), self._field_values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({shown})"


class ClaimReply(NamedTuple):
    """`record` is None only while another transaction locks the key and has not committed yet."""

    granted: bool
    record: Record | None
    now: int
    asked: float = 0.0
    """The caller's clock (engine/clock.py) just before the claim was sent. The engine sets it, not the store."""
    resent: bool = False
    """An earlier sending of this claim was not answered, and may still arrive. The engine sets it, too."""


class LookupReply(NamedTuple):
    record: Record | None
    now: int


class Page(NamedTuple):
    """One page of records. `cursor` has the store's own form; it is empty on the last page."""

    records: tuple[Record, ...]
    cursor: str
    unreadable: tuple[bytes, ...] = ()
    """Ids of records of this page that cannot be read: damaged, or encrypted with a key that is not in the ring."""


class StatsReply(NamedTuple):
    claimed: int
    released: int
    completed: int
    uncertain: int
    lapsed: int
    """How many of the claimed ones have a lapsed lease."""
    expired: int
    """How many of the settled ones the reaper may delete."""
    now: int


@value_class
class Claim(Op[ClaimReply]):
    """Ask for the right to run the work. A refusal writes nothing. By the token, the store recognises an earlier grant
    of this claim."""

    id: bytes
    namespace: str
    kind: str
    scope: str
    key: str
    target: str
    fingerprint: Fingerprint
    token: bytes
    run: bytes
    lease: int
    retention: int
    on_lapse: OnLapse
    input: bytes = b""
    now: int | None = None
    alternatives: tuple[Fingerprint, ...] = ()
    """Fingerprints of the same request in the forms of other releases or keys. A record with one of them matches."""
    resumes: bytes = b""
    """The only run to resume. Such a claim takes over or is refused; it never begins a new life."""

    def wants(self, run: bytes) -> bool:
        """Whether this claim may resume this run."""
        return not self.resumes or self.resumes == run

    def accepts(self, fingerprint: Fingerprint) -> bool:
        """Whether a record with this fingerprint belongs to the same request."""
        return fingerprint == self.fingerprint or fingerprint in self.alternatives


@value_class
class Renew(Op[bool]):
    """Renew the lease: the heartbeat. It never shortens a lease, and never undoes that the owner has given up."""

    id: bytes
    fence: Fence
    lease: int
    now: int | None = None


@value_class
class Advance(Op[bool]):
    """Commit a recovery point, and set what a lapsed lease means from here on.

    The advances of an attempt are numbered from 1. Only the next number counts, so a copy that arrives late cannot move
    the recovery point back.
    """

    id: bytes
    fence: Fence
    number: int
    point: str
    progress: bytes
    on_lapse: OnLapse
    lease: int
    now: int | None = None


@value_class
class Complete(Op[bool]):
    """Store the answer, once."""

    id: bytes
    fence: Fence
    answer: Answer
    now: int | None = None


@value_class
class Release(Op[bool]):
    """Give the key back without an answer: the next claim may run, from the recovery point if there is one."""

    id: bytes
    fence: Fence
    note: str = ""
    now: int | None = None


@value_class
class Withdraw(Op[bool]):
    """Undo the claim: the owner knows that no endpoint was entered. On the first attempt and without a recovery point,
    the next claim begins a new life, with any request; otherwise this is an ordinary release."""

    id: bytes
    fence: Fence
    note: str = ""
    now: int | None = None


@value_class
class Suspect(Op[bool]):
    """Mark the outcome unknown. The sweeper sets `lapsed_only`, so that it never marks the record of a living owner."""

    id: bytes
    fence: Fence
    note: str
    lapsed_only: bool = False
    now: int | None = None


@value_class
class Resolve(Op[bool]):
    """A person, or code that asked the other system, says how an uncertain attempt ended: it happened (the answer), or
    it did not (None). The record need not be marked yet: a lapsed lease with `on_lapse` uncertain is enough."""

    id: bytes
    fence: Fence
    answer: Answer | None
    note: str
    now: int | None = None


@value_class
class Lookup(Op[LookupReply]):
    id: bytes
    now: int | None = None


@value_class
class Forget(Op[bool]):
    """Erase the bytes of a settled record (answer, input, progress) and keep the fact, so that nothing runs again."""

    id: bytes
    fence: Fence
    now: int | None = None


@value_class
class Reap(Op[int]):
    """Delete at most `limit` expired records; the reply is how many went."""

    limit: int
    now: int | None = None
    namespace: str | None = None
    """Only the records of this application; None: of all."""


@value_class
class List(Op[Page]):
    """Page through records, in the store's own order. A record that exists throughout is seen at least once.

    Released records that have expired are left out: they are not to be tried again."""

    namespace: str | None = None
    state: State | None = None
    kind: str | None = None
    scope: str | None = None
    lapsed: bool = False
    cursor: str = ""
    limit: int = 100
    now: int | None = None
    resting: bool = False
    """Only records that were released at a recovery point: unfinished work, which is rare among the released."""
    examine: int = 0
    """Where no index serves the filters: end the page after about so many records were read. It may then be empty
    although its cursor leads on. 0: read on until records match. A store may read on in any case."""
    key: str | None = None
    """Only records of this key. For stores whose capabilities say `finds_keys`; others may list all."""

    @property
    def only_open(self) -> bool:
        """Whether the list is of claimed or uncertain records. They are few among many, and stores have an index of
        them, unless something went wrong for many at once."""
        return self.lapsed or self.state in OPEN

    @property
    def max_sorted(self) -> int:
        """With `examine`: up to so many open records, a page reads the index of them and sorts. That costs a tenth of
        passing over a record, and finds a rare one at once."""
        return 10 * self.examine


@value_class
class Stats(Op[StatsReply]):
    """Count the records in each state. The cost grows with the store: SQL stores and MongoDB read every record or an
    index of all; Redis and DynamoDB read every record if one application is asked for (for all of them Redis reads its
    index, and DynamoDB counts it). So this is for people who ask; no background service may send it (it sends
    `Backlog`)."""

    now: int | None = None
    namespace: str | None = None


@value_class
class Install(Op[str]):
    """Read the id of the installation, drawn when its tables were created. Two connections that read the same id are
    connected to the same database. Only stores that a user's transaction can join answer it."""


@value_class
class LookupCommit(Op[bool | None]):
    """Whether a transaction of the user's was committed, asked after its own connection was lost. `began` and `marker`
    are how the transaction was marked. None: it is still open, or the database does not know. Only the SQL stores
    answer it."""

    began: int
    marker: bytes = b""


@value_class
class ForgetMarker(Op[None]):
    """Delete the marker of a transaction whose early commit was noted on its record. Only stores that a user's
    transaction can join do it."""

    marker: bytes


Fenced = Renew | Advance | Complete | Release | Withdraw | Suspect | Resolve | Forget
FENCED = (Renew, Advance, Complete, Release, Withdraw, Suspect, Resolve, Forget)
