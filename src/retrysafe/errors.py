"""Everything retrysafe raises.

    RetrySafeError
    ├── UsageError                 the developer: a setting or a call is wrong
    │   ├── PolicyError            a Policy field has an impossible value
    │   ├── StoreURLError          no store answers to this URL
    │   ├── MissingDriver          the store's driver is not installed
    │   ├── BadName                a table, schema or prefix that cannot be one
    │   ├── TemplateError          a key template that cannot make keys
    │   ├── ScopeRequired          no principal: keys would be shared between tenants
    │   ├── ArgumentError          a call whose arguments cannot be fingerprinted
    │   ├── ResultNotStorable      the work was done, its result has no stored form
    │   ├── OperationError         an operation that is declared or called wrongly
    │   ├── SyncAsyncMismatch      sync used where only async was given, or the reverse
    │   ├── NestedTransaction      a transaction was open already: ours must be the outermost
    │   ├── TransactionSplit       the body committed or rolled back in the middle of its transaction
    │   ├── NotSameDatabase        the transaction is not on the store's own database
    │   └── NoAnswer               a transaction block was left without an answer
    ├── KeyProblem                 the client: its key cannot be used
    │   ├── MissingKey
    │   ├── MalformedKey
    │   └── FingerprintMismatch    the key belongs to another request
    ├── VerificationError          the client: a webhook that its sender did not sign, or not lately
    ├── NotNow                     nobody: try the same key again
    │   ├── InProgress             another caller works on it
    │   ├── RolledBack             the database undid all of it: nothing happened
    │   ├── NotFinished            an operation stopped at a recovery point: it resumes there
    │   └── NotDone                a job that has no result yet
    ├── OperationChanged           it was begun by other code: refused and left as it is (503, retry with the same key)
    ├── RunOver                    the run to resume is over: its key has begun another life
    ├── NotUncertain               there is nothing to decide: it is not uncertain, or somebody was first
    ├── OutcomeUnknown             it began, and nobody knows how it ended
    ├── OutcomeUnrecorded          it ran, and how it ended could not be stored
    ├── AnswerGone                 it was done; its answer was not kept
    ├── StoredFailure              it was tried, it failed, and that is the answer
    ├── LeaseLost                  the caller was replaced: whatever it writes now changes nothing
    └── StoreError                 the operator: the store
        ├── StoreOutage            it did not answer: the same operation may be sent again
        │   ├── StoreUnavailable   it could not be reached, or said no; nothing was done
        │   │   └── StoreUnreachable  no connection could be made: new claims are refused at once meanwhile
        │   └── StoreUnclear       it went silent after the request was sent: maybe it was done
        │       └── CommitUnclear  so at the commit of a transaction: the work may have been done
        ├── StepNotRecorded        an operation ran a step, and the store refused to write that down
        ├── SchemaMissing          its tables are not there or too old
        ├── SchemaRefused          a table is lost, or the schema is too new: somebody has to decide
        └── CorruptRecord          what it holds cannot be read

Each class says who has to act (`blame`), whether the same call may succeed later (`retryable`), the status of an HTTP
response (`status`), and where it is explained (`anchor` in docs/reference/errors.md). Each message has the offending
value (unless it is a secret) and says what to do.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from retrysafe.core.deprecation import renamed_names
from retrysafe.core.times import SECOND_MICROS, format_time
from retrysafe.core.urls import name_url

Blame = Literal["client", "developer", "operator", "nobody"]


class RetrySafeError(Exception):
    """The root of everything retrysafe raises: `except RetrySafeError` catches it all."""

    blame: ClassVar[Blame] = "nobody"
    retryable: ClassVar[bool] = False
    status: ClassVar[int] = 500
    anchor: ClassVar[str] = "retrysafe-error"

    def __reduce__(self) -> tuple[Any, ...]:
        """Make errors picklable: they go to other processes, into a queue's result backend, into a runtime's history.
        The default would call the class with the finished message, which most constructors do not take."""
        return _arrived, (type(self), self.args, vars(self))


def _arrived(kind: type[RetrySafeError], args: tuple[Any, ...], state: dict[str, Any]) -> RetrySafeError:
    """Make an error from its pickle. The name stays: pickles that are stored elsewhere contain it."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


# The developer's --------------------------------------------------------------------------------


class UsageError(RetrySafeError, ValueError):
    blame = "developer"
    anchor = "usage"


class PolicyError(UsageError):
    anchor = "policy"

    def __init__(self, field: str, value: object, fix: str) -> None:
        super().__init__(f"Policy({field}={value!r}) is not possible: {fix}")


class StoreURLError(UsageError):
    anchor = "store-url"


class MissingDriver(UsageError, ImportError):
    anchor = "missing-driver"

    def __init__(self, store: str, module: str, extra: str, needed_by: str = "") -> None:
        """`needed_by` says what needs the module, if it is not a store."""
        super().__init__(
            f"{needed_by or f'the {store} store'} needs the module {module!r}, which is not installed: "
            f"pip install 'retrysafe[{extra}]'"
        )


class BadName(UsageError):
    anchor = "names"


class TemplateError(UsageError):
    anchor = "templates"

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"key template {text!r}: {why}")


class ScopeRequired(UsageError):
    anchor = "scope"

    def __init__(self, scope: object) -> None:
        super().__init__(
            f"scope is {scope!r}, but every key belongs to somebody: "
            "pass what identifies the authenticated caller (a tenant or account id), never a header it may choose"
        )


class ArgumentError(UsageError):
    anchor = "arguments"


class ResultNotStorable(UsageError):
    anchor = "results"

    def __init__(self, function: str, why: str, *, rolled_back: bool = False) -> None:
        after = (
            "It was rolled back, so nothing happened"
            if rolled_back
            else "The key is marked done, so it will not run again"
        )
        super().__init__(
            f"{function} ran, but its result cannot be stored: {why}. {after}; return plain data, or pass codec="
        )


class OperationError(UsageError):
    anchor = "operations"


class SyncAsyncMismatch(UsageError):
    anchor = "colours"


class NestedTransaction(UsageError):
    anchor = "nested-transaction"

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(
            f"{what} is in a transaction already, so the work and its receipt could not be committed here: {fix}"
        )


class TransactionSplit(UsageError):
    anchor = "transaction-split"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the body of idempotency key {key!r} committed or rolled back its own transaction. What it committed "
            "stays, what was still open was rolled back, and no receipt was written: the key is marked uncertain "
            "until somebody resolves it. Leave commit and rollback to retrysafe; use a savepoint inside"
        )


class NotSameDatabase(UsageError):
    anchor = "not-same-database"

    def __init__(self, store: str, transaction: str) -> None:
        super().__init__(
            f"the transaction is on another database than the store: installation {transaction[:8] or '(none)'}… "
            f"instead of {store[:8]}…. Pass a connection to the store's own database, or open the store on yours"
        )


class NoAnswer(UsageError):
    anchor = "no-answer"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the transaction block of idempotency key {key!r} ended without an answer, so there is nothing to replay; "
            "everything was rolled back. Set tx.answer = Answer(...) before the block ends"
        )


# The client's -----------------------------------------------------------------------------------


class KeyProblem(RetrySafeError):
    blame = "client"
    status = 400
    anchor = "keys"


class MissingKey(KeyProblem):
    anchor = "missing-key"

    def __init__(self) -> None:
        super().__init__("this request needs an Idempotency-Key header: send one random key per logical operation")


class MalformedKey(KeyProblem, ValueError):
    anchor = "malformed-key"

    def __init__(self, header: str, why: str, fix: str = "send 1 to 255 visible ASCII characters") -> None:
        self.why = why
        self.fix = fix
        shown = header if len(header) <= 80 else header[:77] + "…"
        super().__init__(f"idempotency key {shown!r} cannot be used: {why}; {fix}")


class FingerprintMismatch(KeyProblem):
    status = 422
    anchor = "mismatch"

    def __init__(self, key: str, first_seen: int) -> None:
        self.first_seen = first_seen
        super().__init__(
            f"idempotency key {key!r} was first used with a different request at {format_time(first_seen)}; "
            "send a new key for a new request, or repeat the original request unchanged"
        )


class VerificationError(RetrySafeError, ValueError):
    """The only error that verifying a webhook raises. Nothing was stored, and no handler ran."""

    blame = "client"
    status = 400
    anchor = "verification"

    def __init__(self, sender: str, why: str) -> None:
        self.why = why
        super().__init__(
            f"this is not a {sender} webhook we may believe: {why}. If it is genuine, check the signing secret of the "
            "endpoint, that the body is passed on as the raw bytes that came, and this machine's clock"
        )


# Nobody's ---------------------------------------------------------------------------------------


class NotNow(RetrySafeError):
    retryable = True
    status = 409
    anchor = "not-now"


class InProgress(NotNow):
    anchor = "in-progress"

    def __init__(self, key: str, retry_after: int) -> None:
        self.retry_after = retry_after / SECOND_MICROS
        super().__init__(
            f"idempotency key {key!r} is being worked on by another caller; "
            f"retry with the same key in {self.retry_after:.1f} s at the latest"
        )


class RolledBack(NotNow):
    anchor = "rolled-back"

    def __init__(self, key: str, why: str) -> None:
        super().__init__(
            f"the transaction of idempotency key {key!r} was rolled back and nothing happened: {why}; "
            "run it again with the same key"
        )


class NotFinished(NotNow):
    status = 503
    anchor = "not-finished"

    def __init__(self, operation: str, key: str, point: str, why: str, retry_after: float = 1.0) -> None:
        self.retry_after = max(1.0, retry_after)
        super().__init__(
            f"{operation} with key {key!r} stopped at {point!r} ({why}); "
            "retry with the same key, or let the worker go on"
        )


class NotDone(NotNow):
    anchor = "not-done"

    def __init__(self, key: str, state: str, why: str = "") -> None:
        self.state = state
        super().__init__(
            f"job {key!r} has no result yet: it is {state}{why}; ask again later, or enqueue it again with the same "
            "key, which sends it only if it is absent, lost or failed"
        )


class OperationChanged(RetrySafeError):
    """The code that began the operation can resume it, and may still run beside this one: retry with the same key."""

    blame = "operator"
    retryable = True
    status = 503
    anchor = "operation-changed"

    def __init__(self, operation: str, why: str) -> None:
        super().__init__(
            f"{operation} was begun by other code: {why}. It is refused rather than guessed at, and left as it was; "
            "retry with the same key, run it with the code that began it, or let an operator look: "
            "retrysafe operations show"
        )


class RunOver(RetrySafeError):
    blame = "operator"
    status = 409
    anchor = "run-over"

    def __init__(self, key: str, run: str, since: int) -> None:
        super().__init__(
            f"run {run[:16]} of idempotency key {key!r} is over: the key began another life at {format_time(since)}, "
            "and nothing was done to that one. Look at the key again, and name the run that is there now"
        )


class NotUncertain(RetrySafeError):
    blame = "operator"
    status = 409
    anchor = "not-uncertain"

    def __init__(self, key: str, state: str, attempt: int, note: str, advice: str = "") -> None:
        """`advice` says why there is nothing to decide, and what to do instead; without it, another decision was
        quicker."""
        self.state = state
        why = f" ({note})" if note else ""
        reason = advice or "its owner came back, or somebody else decided first. Look at it again before you decide"
        super().__init__(
            f"idempotency key {key!r} is {state} in attempt {attempt}{why}, so nothing was changed: {reason}"
        )


class OutcomeUnknown(RetrySafeError):
    blame = "operator"
    anchor = "outcome-unknown"

    def __init__(self, key: str, since: int, note: str) -> None:
        super().__init__(
            f"the outcome of idempotency key {key!r}, begun at {format_time(since)}, is unknown ({note}); it will not "
            "run again until somebody finds out and resolves it: `retrysafe keys why` and `retrysafe keys resolve`"
        )


class OutcomeUnrecorded(RetrySafeError):
    """The work was done; the store was away for so long that its outcome could not be stored."""

    blame = "operator"
    retryable = True
    anchor = "outcome-unrecorded"

    def __init__(self, key: str, cause: Exception) -> None:
        super().__init__(
            f"the work for idempotency key {key!r} was done, but how it ended could not be stored "
            f"({type(cause).__name__}). Do not take another key: ask again with this one. You get the stored outcome, "
            "or are told that a person must look; where abandoned work may run again (abandoned='rerun'), it does"
        )


class AnswerGone(RetrySafeError):
    status = 410
    anchor = "answer-gone"

    def __init__(self, key: str, why: str) -> None:
        self.why = why
        more = ": it was erased, or an operator said that it happened and gave no answer" if why == "forgotten" else ""
        super().__init__(
            f"idempotency key {key!r} was completed, but its answer was not kept ({why}{more}); it will not run again. "
            "Look the result up in the system it went to"
        )


class StoredFailure(RetrySafeError):
    anchor = "stored-failure"

    def __init__(self, function: str, kind: str, message: str) -> None:
        self.kind = kind
        self.message = message
        super().__init__(
            f"{function} was tried and failed with {kind}: {message}. The failure was stored as its answer "
            "(failures='store'); use another key to try again"
        )


class LeaseLost(RetrySafeError):
    anchor = "lease-lost"

    def __init__(self, key: str, attempt: int) -> None:
        super().__init__(
            f"attempt {attempt} of idempotency key {key!r} no longer owns it: the lease lapsed and another attempt "
            "took over, the key expired, or the store lost it. Nothing this attempt writes now has an effect; stop, "
            "and look the key up"
        )


# The operator's ---------------------------------------------------------------------------------


class StoreError(RetrySafeError):
    blame = "operator"
    status = 503
    anchor = "store"


class StoreOutage(StoreError):
    """The store did not answer. The subclass says whether anything was done."""

    retryable = True
    anchor = "store-outage"


class StoreUnavailable(StoreOutage):
    """The store could not be reached, or refused before doing anything."""

    anchor = "store-unavailable"


class StoreUnreachable(StoreUnavailable):
    """No connection could be made. Until one can, new claims are refused at once (engine/circuit.py)."""

    anchor = "store-unreachable"

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(message)
        self.node = node
        """The node, in a store that has several; empty if there is one node, or if all of them are meant."""


class StoreUnclear(StoreOutage):
    """The store did not answer after a request was sent: it may or may not have been carried out.

    Every operation may be sent again and recognises its own earlier success; the engine does that. This is not a
    StoreUnavailable: "nothing was done" and "maybe" must not be caught as one.
    """

    anchor = "store-unclear"


class CommitUnclear(StoreUnclear):
    """The connection was lost at the commit of a transaction, and the database stayed away: the user's work may have
    been committed. Any other StoreUnclear is about a claim, and no work has begun."""

    anchor = "commit-unclear"


class StepNotRecorded(StoreError):
    """An operation ran a step, and the store refused to write that down. The next attempt goes on from the recovery
    point before it."""

    retryable = True
    anchor = "step-not-recorded"


class SchemaMissing(StoreError):
    anchor = "schema-missing"

    def __init__(self, found: str, url: str) -> None:
        super().__init__(f"{found}; create or upgrade the tables with: retrysafe migrate {name_url(url)}")


class SchemaRefused(StoreError):
    """A table of the schema is lost, or a release that is too new for this one made the schema."""

    anchor = "schema-refused"

    def __init__(self, found: str, todo: str) -> None:
        super().__init__(f"{found}; {todo}")


class CorruptRecord(StoreError):
    status = 500
    anchor = "corrupt-record"

    def __init__(self, record_id: bytes, why: str) -> None:
        super().__init__(
            f"record {record_id.hex()[:16]}… cannot be read: {why}. Nothing was run. Set the key ring right, or "
            "restore the record from a backup of the store. Where neither can be done, its bytes can be erased from "
            "Python, and it does not run again: docs/howto/resolving.md"
        )


__getattr__ = renamed_names("retrysafe.errors", {"WrongColour": "SyncAsyncMismatch"})
