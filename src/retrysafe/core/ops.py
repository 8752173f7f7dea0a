"""The storage operations, as values. A store is two verbs over these: execute(op), execute_many(ops).

Every operation may be sent again. It carries what makes a second arrival recognisable (a token, a fence),
so after an unclear failure the caller simply sends the same value once more and learns the truth.

`now` is None in production: the store's own clock decides. Tests pass a number and never sleep.

To add an operation: a class here, its move in moves.py (which gives it to the memory store), its statement
in stores/sql/ and its script in stores/redis/, and a case in testing/contract/. Staged jobs and the undo
ledger will be operations of this same shape.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

from retrysafe.core.records import Answer, Fence, Fingerprint, Record
from retrysafe.core.states import OnLapse, State
from retrysafe.core.value import value_class

R_co = TypeVar("R_co", covariant=True)


class Op(Generic[R_co]):
    """An operation whose reply is an R. A value: compared, hashed and shown by its fields.

    Said once here and not generated for each class: two dozen sets of generated methods are a fifth of what importing
    retrysafe costs.
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
    """`record` is None only when another transaction holds the key and has not shown it yet."""

    granted: bool
    record: Record | None
    now: int
    asked: float = 0.0
    """On the asking process's clock, just before it was sent; the engine writes it down (engine/clock.py)."""


class LookupReply(NamedTuple):
    record: Record | None
    now: int


class Page(NamedTuple):
    """`cursor` is the store's own; empty when this was the last page."""

    records: tuple[Record, ...]
    cursor: str
    unreadable: tuple[bytes, ...] = ()
    """Ids of records that belong here and cannot be read (damaged, or sealed with a key that is not in the ring): they
    hide none of the others."""


class StatsReply(NamedTuple):
    claimed: int
    released: int
    completed: int
    uncertain: int
    lapsed: int
    """Of the claimed, how many have no living owner."""
    expired: int
    """Of the settled, how many the reaper may take."""
    now: int


@value_class
class Claim(Op[ClaimReply]):
    """Ask to be the one who runs it. A refusal writes nothing; the token recognises an earlier grant of this claim."""

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
    """The same request in the forms of other releases or keys: a record that has one of them is not another request."""
    resumes: bytes = b""
    """The run to go on with, and no other: such a claim takes over or is refused, it never begins a life."""

    def wants(self, run: bytes) -> bool:
        """Whether it may go on with this run."""
        return not self.resumes or self.resumes == run

    def accepts(self, fingerprint: Fingerprint) -> bool:
        """Whether a record with this fingerprint stands for the same request."""
        return fingerprint == self.fingerprint or fingerprint in self.alternatives


@value_class
class Renew(Op[bool]):
    """Keep the lease: the heartbeat. It never shortens a lease, and never takes back that its owner gave up."""

    id: bytes
    fence: Fence
    lease: int
    now: int | None = None


@value_class
class Advance(Op[bool]):
    """Commit a recovery point, and say what a lapsed lease means from here on.

    The advances of an attempt are numbered from 1. Only the next number is obeyed, so a copy that arrives late cannot
    move the point back over what followed.
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
    """Nothing final happened: whoever asks next may try, at the recovery point if there is one."""

    id: bytes
    fence: Fence
    note: str = ""
    now: int | None = None


@value_class
class Withdraw(Op[bool]):
    """The owner knows that nothing was entered: as if the claim had not been made. On the first attempt, and with no
    recovery point, whoever claims next begins a new life, with any request; otherwise it is an ordinary release."""

    id: bytes
    fence: Fence
    note: str = ""
    now: int | None = None


@value_class
class Suspect(Op[bool]):
    """Mark the outcome unknown. The sweeper sets `lapsed_only`: it must never accuse an owner that is alive."""

    id: bytes
    fence: Fence
    note: str
    lapsed_only: bool = False
    now: int | None = None


@value_class
class Resolve(Op[bool]):
    """A person or a probe knows: it happened (the answer), or it did not (None). Only of what is uncertain, whether the
    sweeper has said so yet or not: a lapsed lease that makes it uncertain is enough."""

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
    """Only those of this application; None: of all."""


@value_class
class List(Op[Page]):
    """Page through records. A record that is there throughout is seen at least once; order is the store's own.

    Of the released, those that have expired are left out: nobody is to try them again."""

    namespace: str | None = None
    state: State | None = None
    kind: str | None = None
    scope: str | None = None
    lapsed: bool = False
    cursor: str = ""
    limit: int = 100
    now: int | None = None
    resting: bool = False
    """Only what was released at a recovery point: unfinished work, which is rare among what was released."""


@value_class
class Stats(Op[StatsReply]):
    """How many stand where. It costs by what is in the store: SQL stores and MongoDB read every record or an index of
    all; Redis and DynamoDB read every record if it is for one application (for all together Redis asks its index, and
    DynamoDB counts it). So it is for people who ask; nothing that runs by itself may send it."""

    now: int | None = None
    namespace: str | None = None


@value_class
class Install(Op[str]):
    """Which installation this is: a name drawn when its tables were made. Two connections that read the same one
    are connections to the same database. Only the SQL stores answer it."""


Fenced = Renew | Advance | Complete | Release | Withdraw | Suspect | Resolve | Forget
FENCED = (Renew, Advance, Complete, Release, Withdraw, Suspect, Resolve, Forget)
AnyOp = Claim | Fenced | Lookup | Reap | List | Stats
