"""`retrysafe keys resolve|release|forget`: change keys, one by one or many at once. Every change is a fenced operation:
a key that changed since it was read is left alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from retrysafe.cli.exits import CHANGED, DONE, ChangedUnderneath, NotFound, Refused
from retrysafe.cli.output import Progress, print_json, print_note
from retrysafe.cli.parsing import add_bulk, add_json, add_reason
from retrysafe.cli.record_search import RecordFinder, RecordQuery, iter_records
from retrysafe.cli.session import Session, make_entry, open_session
from retrysafe.core.moves import is_outcome_unknown
from retrysafe.core.ops import Forget, List, Lookup, Release, Resolve
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import SETTLED, State
from retrysafe.core.times import SECOND_MICROS, format_time
from retrysafe.engine.audit import MAX_NAMED_RECORDS
from retrysafe.engine.resolving import WITHOUT_ANSWER, advise_on_settled, convert_to_result
from retrysafe.engine.sealing import is_sealed
from retrysafe.engine.why import is_run, state_for_people
from retrysafe.errors import NotUncertain, UsageError

PAGE_ROWS = 200


class Decision(NamedTuple):
    """What is to be done with a record: an operation, or the reason why not."""

    op: Any = None
    refusal: str = ""


Decide = Callable[[Record, int], Decision]


# The decisions: pure ------------------------------------------------------------------------------


def decide_resolve(record: Record, now: int, answer: Answer | None, because: str) -> Decision:
    """`answer` None: it did not happen."""
    if not is_outcome_unknown(record, now):
        return Decision(refusal=str(_not_uncertain_error(record, now)))
    try:
        stored = None if answer is None else convert_to_result(record, answer)
    except UsageError as error:
        return Decision(refusal=f"{error}. Nothing was changed")
    return Decision(Resolve(record.id, record.fence, stored, because))


def _not_uncertain_error(record: Record, now: int) -> NotUncertain:
    advice = advise_on_settled(record, now, None)
    return NotUncertain(record.key, record.state.value, record.attempt, record.note, advice)


def decide_release(record: Record, now: int, because: str, *, owner_is_dead: bool) -> Decision:
    """Only what may run again without a doubt: a guard of unknown outcome is resolved instead."""
    if record.state in SETTLED:
        return Decision(refusal=f"{record.key!r} is {record.state.value}: nobody holds it")
    if is_outcome_unknown(record, now) or record.on_lapse == "uncertain":
        return Decision(
            refusal=f"{record.key!r}: nobody knows how its work ended, so it must not simply run again; say how it "
            f"ended: retrysafe keys resolve {record.id.hex()[:16]} --id --happened | --did-not-happen"
        )
    if not record.lapsed(now) and not owner_is_dead:
        return Decision(
            refusal=f"{record.key!r}: its owner is at work, and its lease lasts until "
            f"{format_time(record.lease_until)}; "
            "wait for that, or say --owner-is-dead if you know that its process is gone"
        )
    return Decision(Release(record.id, record.fence, because))


def decide_forget(record: Record, now: int) -> Decision:
    if record.state not in SETTLED or (record.state is State.RELEASED and record.point):
        shown = state_for_people(record, now)
        return Decision(refusal=f"{record.key!r} is {shown}: unfinished work needs its bytes; finish it first")
    return Decision(Forget(record.id, record.fence))


def is_forgotten(record: Record) -> bool:
    """Whether there is nothing left to erase."""
    kept = record.answer is not None and (record.answer.body or record.answer.headers)
    return not (kept or record.input or record.progress)


# Parsers ------------------------------------------------------------------------------------------


def add_parsers(verbs: Any) -> None:
    resolve = verbs.add_parser(
        "resolve",
        help="decide how an uncertain key ended",
        description="For keys that are uncertain, and for lapsed keys that will become uncertain. If the owner, "
        "another person or a worker settles the key first, the command fails and changes nothing. If the application "
        "has a key ring, give --app instead of a URL: without the ring the application could not read the answer. The "
        "command refuses --answer for a record that is visibly sealed, but not every sealed record is. For an "
        "operation, --happened completes the whole operation. For a function, --answer is its result as JSON. With "
        "--all it decides for every uncertain key that matches, and shows them first.",
        takes_url=True,
        examples=(
            "retrysafe keys resolve order-7 --did-not-happen --because 'the provider shows no charge'",
            "retrysafe keys resolve order-7 --happened --status 201 --answer charge.json --because 'charge ch_7'",
            "retrysafe keys resolve --all --target 'POST /pay' --did-not-happen --because '...' --yes",
        ),
    )
    _add_which(resolve, bulk=True)
    how = resolve.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--happened", action="store_true", help="the work was done: a retry gets the answer and does not run"
    )
    how.add_argument("--did-not-happen", action="store_true", help="the work was not done: the next retry runs it")
    resolve.add_argument(
        "--answer", metavar="FILE", help="with --happened: the body to replay ('-' for standard input)"
    )
    resolve.add_argument("--status", type=int, default=200, help="with --answer: the status to replay (200)")
    resolve.add_argument(
        "--content-type",
        default="application/json",
        help="with --answer: the content type to replay (application/json)",
    )
    resolve.add_argument("--attempt", type=int, help="only if the key is still in this attempt")
    resolve.set_defaults(run=run_resolve)

    release = verbs.add_parser(
        "release",
        help="let a key run again whose owner is gone",
        description="For keys that may safely run again: the next retry does. A key of unknown outcome is refused; "
        "`keys resolve` decides it.",
        takes_url=True,
        examples=("retrysafe keys release import-3 --scope importer --because 'its pod was evicted' --owner-is-dead",),
    )
    _add_which(release, bulk=True)
    release.add_argument("--owner-is-dead", action="store_true", help="do not wait for the lease: its process is gone")
    release.add_argument("--attempt", type=int, help="only if the key is still in this attempt")
    release.set_defaults(run=run_release)

    forget = verbs.add_parser(
        "forget",
        help="erase the stored answer of a finished key",
        description="Erases the answer, the input and the progress of a finished key, and keeps the fact that it was "
        "done: a retry still does not run. `retrysafe erase --scope` does it for a whole tenant.",
        takes_url=True,
        examples=("retrysafe keys forget order-7 --scope acme --because 'card number in the answer'",),
    )
    _add_which(forget, bulk=False)
    forget.add_argument("--attempt", type=int, help="only if the key is still in this attempt")
    forget.set_defaults(run=run_forget)


def _add_which(parser: argparse.ArgumentParser, *, bulk: bool) -> None:
    parser.add_argument("key", metavar="KEY", nargs="?", help="the key, or the first 8 or more digits of its id")
    parser.add_argument("--id", action="store_true", help="KEY is an id or its first 8 or more digits, not a key")
    parser.add_argument("--scope", help="the scope of the key, if several scopes have it")
    parser.add_argument("--namespace", help="the application of the key (default: the setting, else 'default')")
    add_reason(parser)
    add_json(parser)
    if bulk:
        parser.add_argument("--all", action="store_true", help="every key that matches, instead of one")
        parser.add_argument("--target", help="with --all: only keys of this target, as `keys list` shows it")
        parser.add_argument(
            "--older-than", type=float, default=0, metavar="S", help="with --all: only attempts begun before that"
        )
        add_bulk(parser)


# Commands -----------------------------------------------------------------------------------------


def run_resolve(args: argparse.Namespace) -> int:
    if args.answer and not args.happened:
        raise UsageError("--answer is the answer to replay: give it together with --happened")
    if args.all and args.answer:
        raise UsageError("--all --answer: one answer cannot be that of many requests; leave --answer out")
    answer = _read_answer(args) if args.happened else None
    with open_session(args) as session:

        def decide(record: Record, now: int) -> Decision:
            if args.answer and is_sealed(record) and not session.has_ring:
                return Decision(refusal=_describe_sealed(record))
            return decide_resolve(record, now, answer, args.because or "")

        details = {"happened": bool(args.happened)}
        return _act(args, session, Action("keys resolve", decide, State.UNCERTAIN, details))


def _read_answer(args: argparse.Namespace) -> Answer:
    if not args.answer:
        return WITHOUT_ANSWER
    try:
        body = sys.stdin.buffer.read() if args.answer == "-" else Path(args.answer).read_bytes()
    except OSError as error:
        raise UsageError(f"--answer {args.answer}: {error.strerror}") from error
    return Answer(args.status, body, {"content-type": args.content_type})


def _describe_sealed(record: Record) -> str:
    return (
        f"{record.key!r} belongs to an application with a key ring, and this command has none: the application could "
        "not read the answer, and the key could not be resolved again. Nothing was changed. Give --app MODULE:SAFE "
        f'instead of the URL, or call it from Python: safe.resolve("{record.id.hex()}", happened=True, '
        'answer=Answer(...), because="..."); or leave out --answer: a retry then learns that the answer was not kept'
    )


def run_release(args: argparse.Namespace) -> int:
    with open_session(args) as session:

        def decide(record: Record, now: int) -> Decision:
            return decide_release(record, now, args.because or "", owner_is_dead=args.owner_is_dead)

        return _act(args, session, Action("keys release", decide, State.CLAIMED, {}))


def run_forget(args: argparse.Namespace) -> int:
    args.all = False
    with open_session(args) as session:
        return _act(args, session, Action("keys forget", decide_forget, State.COMPLETED, {}))


class Action(NamedTuple):
    """What a command does: its name, its decision, the state that `--all` looks for, and details for the audit row."""

    name: str
    decide: Decide
    state: State
    details: dict[str, Any]


def _act(args: argparse.Namespace, session: Session, action: Action) -> int:
    make_entry(args, action.name)  # without a reason nothing is read
    if args.all:
        if args.key is not None:
            raise UsageError(f"--all and the key {args.key!r}: give one of them")
        return _act_on_all(args, session, action)
    if args.key is None:
        raise UsageError(f"{action.name}: give the key, or --all")
    return _act_on_one(args, session, action)


def find_one(args: argparse.Namespace, session: Session) -> Record:
    """The one record that the arguments name, in the application's namespace."""
    query = RecordQuery(args.key, args.scope, session.namespace)
    finder = RecordFinder(session, query, to_act=True, by_id=args.id)
    found = [each for each in finder if each.namespace == session.namespace]
    if finder.next_cursor:
        raise UsageError(
            f"the search for {args.key!r} ended after {finder.examined:,} records, and there are more: another key "
            "with this text may exist. Give --scope; or the id that `retrysafe keys show` prints, and --id"
        )
    if not found:
        raise NotFound(
            f"{args.key!r} names 0 keys of namespace {session.namespace!r}",
            "`retrysafe keys list` lists the keys; --namespace names another application",
        )
    if len(found) > 1:
        which = "; ".join(f"{each.id.hex()[:16]} ({each.kind}, {each.scope})" for each in found[:10])
        raise UsageError(
            f"{args.key!r} names {len(found)} keys of namespace {session.namespace!r}: {which}; give --scope, "
            "--namespace, or the id of one and --id"
        )
    return found[0]


def _act_on_one(args: argparse.Namespace, session: Session, action: Action) -> int:
    record = find_one(args, session)
    if args.attempt not in (None, record.attempt):
        raise ChangedUnderneath(
            f"{args.key!r} is in attempt {record.attempt} now, and attempt {args.attempt} was asked for: it changed "
            "underneath. Look at it again before you decide"
        )
    decision = action.decide(record, session.read_time())
    if decision.op is None:
        raise Refused(decision.refusal)
    before = state_for_people(record, session.read_time())
    details = {"before": before, "attempt": record.attempt, **action.details}
    entry = make_entry(args, action.name, (record.id.hex(),), **details)
    with session.act(entry) as audit:
        if not session.execute(decision.op):
            raise _changed_error(session, record)
        after = session.execute(Lookup(record.id)).record or record
        audit.result = {"after": after.state.value}
    shown = {"id": record.id.hex(), "key": record.key, "state": after.state.value, "attempt": after.attempt}
    if args.json:
        print_json({**shown, "action": action.name, "audit": audit.id})
    else:
        print(f"{record.id.hex()[:12]}  {after.state.value}  {record.key}  attempt {after.attempt}")
    return DONE


def _changed_error(session: Session, record: Record) -> ChangedUnderneath:
    found = session.execute(Lookup(record.id)).record
    now = "gone" if found is None else f"{found.state.value}, attempt {found.attempt}"
    why = f": {found.note}" if found is not None and found.note else ""
    return ChangedUnderneath(
        f"{record.key!r} changed underneath: it is {now} now{why}. Nothing was changed by this command",
        f"retrysafe keys why {record.id.hex()[:16]}",
    )


def _act_on_all(args: argparse.Namespace, session: Session, action: Action) -> int:
    """Act on the keys that match now, at most `--cap`. What arrives later is not touched; what changed is skipped."""
    if not 1 <= args.cap <= MAX_NAMED_RECORDS:
        raise UsageError(f"--cap {args.cap}: give 1 to {MAX_NAMED_RECORDS}")
    as_of = session.read_time()
    chosen: list[tuple[Record, Any]] = []
    refused = 0
    for record in _iter_matching(args, session, action.state, as_of):
        decision = action.decide(record, as_of)
        if decision.op is None:
            refused += 1
        else:
            chosen.append((record, decision.op))
        if len(chosen) == args.cap:
            break
    if not args.yes:
        for record, _ in chosen:
            _print_result(args, record, "would change")
        print_note(f"{len(chosen)} would be changed, {refused} left alone; add --yes to do it")
        return DONE
    changed, skipped = 0, 0
    ids = tuple(record.id.hex() for record, _ in chosen)
    progress = Progress("changed", 100)
    details = {**action.details, "as_of": format_time(as_of), "target": args.target}
    with session.act(make_entry(args, action.name, ids, **details)) as audit:
        for record, op in chosen:
            done = bool(session.execute(op))
            changed, skipped = changed + done, skipped + (not done)
            _print_result(args, record, "changed" if done else "skipped: it changed underneath")
            progress.advance(changed)
            if (changed + skipped) % PAGE_ROWS == 0:
                audit.keep_alive()
        audit.result = {"changed": changed, "skipped": skipped}
    progress.end()
    print_note(f"{changed} changed, {skipped} skipped, {refused} left alone; audit row {audit.id[:32]}")
    return CHANGED if skipped and not changed else DONE


def _iter_matching(args: argparse.Namespace, session: Session, state: State, as_of: int) -> Iterator[Record]:
    query = List(session.namespace, state, scope=args.scope, limit=PAGE_ROWS)
    latest = as_of - round(args.older_than * SECOND_MICROS)
    for record in iter_records(session.execute, query):
        if record.kind == "audit" or (args.target and record.target != args.target):
            continue
        if record.started <= latest and not (state is State.CLAIMED and is_run(record)):
            yield record


def _print_result(args: argparse.Namespace, record: Record, result: str) -> None:
    if args.json:
        print_json({"id": record.id.hex(), "key": record.key, "target": record.target, "result": result})
    else:
        print(f"{record.id.hex()[:12]}  {record.target}  {record.key}  {result}")
