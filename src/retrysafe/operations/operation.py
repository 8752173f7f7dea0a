"""Operation: declares the steps and the body (`def` or `async def`), and starts, resumes and undoes runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast, overload

from retrysafe.core.keys import Key
from retrysafe.core.moves import is_outcome_unknown, is_submitted
from retrysafe.core.ops import Claim, Lookup
from retrysafe.core.records import Answer, Record
from retrysafe.core.times import duration_to_micros
from retrysafe.engine import arguments
from retrysafe.engine.clock import clock
from retrysafe.engine.effects import Flow
from retrysafe.engine.guard import Ended, Task
from retrysafe.engine.handlers import is_async_callable
from retrysafe.engine.heartbeat import current_lease
from retrysafe.engine.resolving import resolve_uncertain
from retrysafe.errors import OperationChanged, OperationError, OutcomeUnknown, UsageError
from retrysafe.operations import flow, perform, run, undoing
from retrysafe.operations.announcing import START_PATH, StepPredictor, announce_in, leaves_no_trace
from retrysafe.operations.bodies import await_body, current_run, note_step_task
from retrysafe.operations.foreign import run_foreign_step
from retrysafe.operations.input_codec import InputCodec, fingerprint_for_request
from retrysafe.operations.journal import BY_CALL, BY_PLACE, OperationJournal, was_given_up, was_unknown
from retrysafe.operations.local import run_local_step
from retrysafe.operations.run import OperationRun, StepFlow, check_known_steps, run_step
from retrysafe.operations.steps import Step, check_options
from retrysafe.operations.submission import Accepted, accept
from retrysafe.policy import DAY, FOREVER, Policy
from retrysafe.transactions import staging
from retrysafe.transactions.binding import TxBinding, bind_tx

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

MAX_ATTEMPTS = 10
DEFAULT_POLICY = Policy(failures="release", retention=FOREVER)
RENEWAL_MARGIN_SECONDS = 5.0
"""The time that a lease leaves for its renewal before a call."""


class Operation:
    """A set of declared steps, and a body of ordinary Python that calls them. Call it with `key=`."""

    def __init__(
        self, safe: RetrySafe, name: str, version: int, policy: Policy | None, max_attempts: int = MAX_ATTEMPTS
    ) -> None:
        if not name or len(name) > 200 or "@" in name:
            raise OperationError(f"operation({name!r}): give a name of 1 to 200 characters without '@'")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise OperationError(f"operation({name!r}, version={version!r}): versions are 1, 2, 3 …")
        if not isinstance(max_attempts, int) or isinstance(max_attempts, bool) or max_attempts < 1:
            raise OperationError(f"operation({name!r}, max_attempts={max_attempts!r}): give at least one attempt")
        self.safe = safe
        self.name = name
        self.version = version
        self.policy = (policy or DEFAULT_POLICY).for_functions()
        self.max_attempts = max_attempts
        self.steps: dict[str, Step] = {}
        self.predictor = StepPredictor()
        self.unable: Callable[..., str] | None = None
        """The worker calls it with the input before it takes a run. It returns why this code cannot continue the run,
        or an empty text."""
        self._body: Callable[..., Any] | None = None
        self._input_codec: InputCodec | None = None
        self._tx_binding: TxBinding | None = None

    @property
    def target(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self._body)

    @property
    def lease(self) -> float:
        """Seconds; longer than the longest call. A call begins only if the lease outlasts it, so no other attempt takes
        over while a request may still be under way."""
        calls = (step.timeout + RENEWAL_MARGIN_SECONDS for step in self.steps.values() if step.kind == "foreign")
        return max(self.policy.lease, *calls, 0.0)

    @property
    def rule(self) -> int:
        """How the calls of a new run are numbered (journal.py). A run that was begun keeps its own rule."""
        return BY_CALL if self.safe.forms == "current" else BY_PLACE

    @property
    def tx_binding(self) -> TxBinding:
        if self._tx_binding is None:
            self._tx_binding = bind_tx(self.safe)
        return self._tx_binding

    def clock(self) -> float:
        """The monotonic clock of this process, which measures the time since the store's last reply."""
        return clock()

    # Declaring ------------------------------------------------------------------------------

    @overload
    def local(self, function: Callable[Concatenate[Any, P], R], /) -> Callable[P, R]: ...
    @overload
    def local(self, /, **options: Any) -> Callable[[Callable[Concatenate[Any, P], R]], Callable[P, R]]: ...
    def local(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """A step in one transaction of yours: `def step(tx, …)`. Options: `undo`, `tries`, `backoff`, `final`."""
        return self._declare("local", function, options)

    @overload
    def foreign(self, function: Callable[..., R], /) -> Callable[..., R]: ...
    @overload
    def foreign(self, /, **options: Any) -> Callable[[Callable[..., R]], Callable[..., R]]: ...
    def foreign(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """A step that calls another system: `def step(…, *, key)`.

        `timeout` seconds; `key_life`: how long the other system remembers a key; `find(…, key)`: ask it what happened;
        `undo(…, result, key)`; `repeatable=False` when it takes no keys; `tries` per attempt, `backoff` seconds between
        them; `final`: errors that no further try would change; `deadline` seconds after which it is not sent again;
        `service`: a name that becomes part of the key.
        """
        options.setdefault("key_life", DAY)
        return self._declare("foreign", function, options)

    def body(self, function: F) -> Operation:
        """The body: ordinary Python that calls the steps. It runs again from the top after a crash, so its decisions
        must depend only on its input and on the results of its steps."""
        if self._body is not None:
            raise OperationError(f"operation {self.name!r} has a body already: {self._body.__qualname__}")
        self._body = function
        self._input_codec = InputCodec(self.name, self.target, function)
        for step in self.steps.values():
            self._check_sync_async(step)
        functools.update_wrapper(cast("Any", self), function)
        return self

    def _declare(self, kind: Any, function: Callable[..., Any] | None, options: dict[str, Any]) -> Any:
        def declare(step_function: Callable[..., Any]) -> Callable[..., Any]:
            name = step_function.__name__
            if name in self.steps:
                raise OperationError(f"operation {self.name!r} has a step {name!r} already")
            check_options(name, kind, options)
            try:
                step = Step(name, kind, step_function, **options)
            except TypeError as error:
                raise OperationError(f"step {name!r}: {error}") from None
            self._check_sync_async(step)
            self.steps[name] = step
            return self._build_step_callable(step)

        return declare if function is None else declare(function)

    def _check_sync_async(self, step: Step) -> None:
        if self._body is not None and step.is_async != inspect.iscoroutinefunction(self._body):
            raise OperationError(f"step {step.name!r} and the body of {self.name!r} must both be async, or both not")
        for what, helper in (("undo", step.undo), ("find", step.find)):
            if helper is not None and is_async_callable(helper) and not step.is_async:
                raise OperationError(
                    f"the {what} of step {step.name!r} is async, but the step is not: nobody awaits it"
                )

    def _build_step_callable(self, step: Step) -> Callable[..., Any]:
        """The function that the body calls. It returns the stored result, or runs the step."""
        step_flow: StepFlow = run_local_step if step.kind == "local" else run_foreign_step
        if step.is_async:

            async def run_step_async(attempt: OperationRun, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                attempt.unawaited.remove(step.name)
                note_step_task(attempt)
                return await perform.run_async(self.safe, run_step(attempt, step, step_flow, args, kwargs))

            @functools.wraps(step.function)
            def call_async(*args: Any, **kwargs: Any) -> Any:
                attempt = current_run(self, step)
                attempt.unawaited.append(step.name)
                return run_step_async(attempt, args, kwargs)

            return call_async

        @functools.wraps(step.function)
        def call_sync(*args: Any, **kwargs: Any) -> Any:
            return perform.run_sync(self.safe, run_step(current_run(self, step), step, step_flow, args, kwargs))

        return call_sync

    # Running --------------------------------------------------------------------------------

    def __call__(self, *args: Any, key: str | Key, **kwargs: Any) -> Any:
        """Run the operation, or return its stored answer. Awaitable if the body is async. With `start="worker"` the
        result is Accepted until the worker has finished the run."""
        if inspect.iscoroutinefunction(self._require_body()):
            return self._await_answer(args, key, kwargs)
        return _to_answer(self.start(*args, key=key, **kwargs))

    async def _await_answer(self, args: tuple[Any, ...], key: str | Key, kwargs: dict[str, Any]) -> Answer | Accepted:
        return _to_answer(await self.start(*args, key=key, **kwargs))

    def start(self, *args: Any, key: str | Key, **kwargs: Any) -> Any:
        """Like calling the operation, but returns an `Ended`, which also says whether the answer is a replay."""
        if self.policy.start == "worker":
            return self.submit(*args, key=key, **kwargs)
        task, claim = self.prepare(args, kwargs, key)
        return self._drive(flow.start(self, task, claim, self.safe.events))

    def submit(self, *args: Any, key: str | Key, **kwargs: Any) -> Any:
        """Commit the claim with its input, and let the worker run it. Returns Accepted, or an `Ended` if it is
        finished."""
        task, claim = self.prepare(args, kwargs, key)
        return self._drive(accept(task, claim, self.safe.events, self))

    def resume(self, record: Record, *, fresh: bool = False) -> Any:
        """Take over a record that has no owner, and continue from its recovery point. The worker calls this. Only the
        run that the record shows is resumed: if it is over by now, no new run begins. `fresh`: the run was submitted
        and has never been started, which the record shows, too."""
        return self._drive(self._resume_flow(record, fresh or is_submitted(record)))

    def resume_id(self, record_id: str | bytes, because: str = "", *, not_sent: bool | None = None) -> Any:
        """Resume a record by its id (hex), for an operator. `not_sent`: they say that a step whose outcome is
        unknown, or that may have been sent, did not happen, and `because` says how they know. Without it such a run is
        left alone. By default a reason says so."""
        said = bool(because.strip()) if not_sent is None else not_sent
        return self._drive(self._resume_id_flow(parse_record_id(record_id), because, said))

    def undo_id(self, record_id: str | bytes, because: str) -> Any:
        """Undo one run, for an operator: every step that began, in reverse order. Also a step whose outcome is unknown:
        its undo gets None as the result."""
        if not because.strip():
            raise UsageError("undo_id(..., because=''): say why it is undone; it stands in its ledger")
        return self._drive(self._undo_flow(parse_record_id(record_id), because))

    def _undo_flow(self, record_id: bytes, because: str) -> Flow[Ended]:
        record, now = yield from self._look_up_own(record_id)
        if is_outcome_unknown(record, now):
            self.read_known_journal(record)
            yield from resolve_uncertain(record_id, happened=False, answer=None, because=because)
        task, claim = self._build_resume_claim(record)
        fresh = is_submitted(record)
        return (yield from flow.undo_run(self, task, claim, self.safe.events, because, fresh=fresh))

    def cancel_id(self, record_id: str | bytes, because: str) -> Any:
        """End one run where it is, for an operator: nothing more is sent and nothing is undone. A retry gets 409.
        Refused while the outcome of a step is unknown."""
        if not because.strip():
            raise UsageError("cancel_id(..., because=''): say why it is cancelled; it stands in the log")
        return self._drive(self._cancel_flow(parse_record_id(record_id), because))

    def _cancel_flow(self, record_id: bytes, because: str) -> Flow[Ended]:
        record, _ = yield from self._look_up_own(record_id)
        task, claim = self._build_resume_claim(record)
        return (yield from flow.cancel_run(task, claim, self.safe.events, because))

    def why_unable(self, record: Record) -> str:
        """Why this code cannot continue a run, so that it is left for other code. Empty if it can try."""
        if self.unable is None:
            return ""
        try:
            given = self._get_input_codec().decode(record.input)
        except Exception:
            return ""  # the attempt meets the same error and writes it down
        return self.unable(**given)

    def give_up(self, record: Record) -> Any:
        """Make a dead letter of a record whose attempts all died. The worker calls this (I21)."""
        task, claim = self._build_resume_claim(record)
        return self._drive(flow.give_up(self, task, claim, self.safe.events))

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: str | Key) -> tuple[Task, Claim]:
        given = arguments.bind_arguments(inspect.signature(self._require_body()), args, kwargs)
        # The name is part of the fingerprint: two operations called with one Key and equal arguments are two requests.
        fingerprint = arguments.fingerprint_call(self.name, {"@operation": self.name, **given}, frozenset())
        whose = key if isinstance(key, Key) else Key(key, self.name, "operation")
        input_ = self._get_input_codec().encode(given, sealed=self.safe.sealed)
        # Over HTTP the client repeats the same bytes, however this code parses them.
        by_request = () if whose.request is None else (fingerprint_for_request(self.name, whose.request),)
        first, *others = (*by_request, fingerprint) if self.safe.forms == "current" else (fingerprint, *by_request)
        task = self.safe.build_task(whose, self.target, first, self.policy, input=input_, alternatives=others)
        claim = self._announce_first_step(self._build_claim(task))
        self._check_unclaimed(claim)
        return task, claim

    def _announce_first_step(self, claim: Claim) -> Claim:
        """The claim with the first step announced in the run's number, if that step can be predicted."""
        first = self.steps.get(self.predictor.predict(START_PATH))
        if first is None or not leaves_no_trace(first, self.tx_binding.kind):
            return claim
        service = first.service if first.kind == "foreign" else None
        return replace(claim, run=announce_in(claim.run, first.name, service))

    def is_same_request(self, record: Record, claim: Claim) -> bool:
        """True if a record with another fingerprint is for this very call (input_codec.py)."""
        return record.target.partition("@")[0] == self.name and self._get_input_codec().is_same_call(record, claim)

    def _check_unclaimed(self, claim: Claim) -> None:
        """Raise an error if the caller holds the key itself: its own claim would look like another request."""
        lease = current_lease()
        if lease is not None and lease.id == claim.id:
            raise OperationError(
                f"operation {self.name!r} was given the key {claim.key!r}, which is claimed already by what runs it: a "
                "route or function has one strength and one record. Protect the route with strength='operation', so "
                "that only the operation claims the key; inside another operation's step, use that step's key"
            )

    def _resume_id_flow(self, record_id: bytes, because: str, not_sent: bool) -> Flow[Ended]:
        record, now = yield from self._look_up_own(record_id)
        if because.strip() and is_outcome_unknown(record, now):
            unknown = self.find_unknown_step(record)
            if unknown and not not_sent:
                note = f"step {unknown!r} may have happened; resume_id(..., not_sent=True) says that it did not"
                raise OutcomeUnknown(record.key, record.started, note)
            yield from resolve_uncertain(record_id, happened=False, answer=None, because=because)
        return (yield from self._resume_flow(record, is_submitted(record), not_sent=not_sent))

    def find_unknown_step(self, record: Record) -> str:
        """The step that would be sent once more although nobody knows whether it happened. Empty if there is none: then
        the run resumes with the same keys, or asks the other system first (`find`). What the run itself wrote down
        counts, not how this code declares the step. Raises OperationChanged if this code cannot resume the run."""
        journal = self.read_known_journal(record)
        last = journal.entries[-1] if journal.entries and journal.undoing is None else None
        if last is None or last.state != "begun":
            return ""
        step = self.steps[last.step]
        if step.kind == "foreign" and step.find is not None:
            return ""
        if step.kind == "foreign" and step.repeatable and was_given_up(last):
            return ""
        return last.step if was_unknown(last) or record.on_lapse == "uncertain" or not step.repeatable else ""

    def read_known_journal(self, record: Record) -> OperationJournal:
        """The journal of a run. Raises OperationChanged if this code cannot read it, or lacks one of its steps: said
        before anything is changed for an operator."""
        try:
            journal = OperationJournal.decode(record.progress)
        except (ValueError, TypeError, KeyError) as error:
            raise OperationChanged(self.name, f"its journal cannot be read by this code ({error})") from error
        check_known_steps(self.name, self.steps, journal)
        return journal

    def _look_up_own(self, record_id: bytes) -> Flow[tuple[Record, int]]:
        """The record and the store's time. A record of another namespace counts as missing (I34)."""
        seen = yield Lookup(record_id)
        if seen.record is None or seen.record.namespace != self.safe.namespace:
            raise UsageError(
                f"there is no record {record_id.hex()!r} of the application {self.safe.namespace!r}; "
                "`retrysafe operations list MODULE:SAFE` shows their ids"
            )
        return seen.record, seen.now

    def _resume_flow(self, record: Record, fresh: bool, not_sent: bool = False) -> Flow[Ended]:
        task, claim = self._build_resume_claim(record)
        return (yield from flow.start(self, task, claim, self.safe.events, fresh=fresh, not_sent=not_sent))

    def _build_resume_claim(self, record: Record) -> tuple[Task, Claim]:
        key = Key(record.key, record.scope, cast("Any", record.kind))
        series = (record.kind, record.target)
        task = Task(key, record.namespace, record.target, record.fingerprint, self.policy, series=series)
        return task, replace(self._build_claim(task), resumes=record.run)

    def _build_claim(self, task: Task) -> Claim:
        return replace(task.build_claim(), on_lapse="resume", lease=duration_to_micros(self.lease))

    def call_body(self, attempt: OperationRun, input_: bytes) -> Any:
        """Call the body with its stored input. Returns an awaitable if the body is async."""
        body, given = self._require_body(), self._get_input_codec().read(input_)
        token = run.current.set(attempt)
        try:
            result = body(**given)
        except BaseException:
            attempt.body_ended = True
            raise
        finally:
            run.current.reset(token)
        if inspect.isawaitable(result):
            return await_body(attempt, result)
        attempt.body_ended = True
        return result

    def is_exhausted(self, record: Record) -> bool:
        """True if a record without an owner has used up its attempts. The worker calls this (I21)."""
        try:
            journal = OperationJournal.decode(record.progress)
        except (ValueError, TypeError, KeyError):
            return False  # written by other code: left alone
        return not is_submitted(record) and journal.count_failures(record.attempt) >= self.max_attempts

    def call_undoing(self, attempt: OperationRun) -> Any:
        return self._drive(undoing.undo_all(attempt))

    def _require_body(self) -> Callable[..., Any]:
        if self._body is None:
            raise OperationError(f"operation {self.name!r} has no body yet: decorate one with @{self.name}.body")
        return self._body

    def _get_input_codec(self) -> InputCodec:
        self._require_body()
        assert self._input_codec is not None, "it is made with the body"
        return self._input_codec

    def _drive(self, run_flow: Any) -> Any:
        open_step = staging.current_staging.get()
        if open_step is not None and open_step.local:
            raise OperationError(
                f"operation {self.name!r} was called inside a local step, whose transaction is open; call it from a "
                "foreign step, with that step's key"
            )
        if inspect.iscoroutinefunction(self._require_body()):
            return perform.run_async(self.safe, run_flow)
        return perform.run_sync(self.safe, run_flow)


def _to_answer(started: Ended | Accepted) -> Answer | Accepted:
    return started if isinstance(started, Accepted) else started.answer


def parse_record_id(given: str | bytes) -> bytes:
    try:
        found = given if isinstance(given, bytes) else bytes.fromhex(given)
    except ValueError:
        found = b""
    if len(found) != 32:
        raise UsageError(f"{given!r} is not a record's id: give its 64 hex digits")
    return found
