"""`retrysafe keys resolve|release|forget`: change keys, one by one or many at once. operators/key_actions.py decides
and acts."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from retrysafe.cli.exits import CHANGED, DONE
from retrysafe.cli.output import (
    PatientOutput,
    ProgressLine,
    make_progress_reporter,
    print_json,
    print_line,
    print_note,
    print_table,
)
from retrysafe.cli.parsing import add_bulk, add_json, add_reason
from retrysafe.cli.session import Session, open_session, read_reason
from retrysafe.cli.signals import gate
from retrysafe.core.records import Record
from retrysafe.core.times import SECOND_MICROS
from retrysafe.errors import UsageError
from retrysafe.operators.bulk import BulkAction, BulkFilter, BulkSelection, RowResult
from retrysafe.operators.errors import NotFound
from retrysafe.operators.follow_up import build_command
from retrysafe.operators.key_actions import (
    KeyAction,
    act_on_record,
    decide_forget,
    decide_release,
    decide_resolve,
    is_forgotten,
    make_forget,
    make_release,
    make_resolve,
)
from retrysafe.operators.name_check import suggest_scope
from retrysafe.operators.record_search import RecordFinder, RecordQuery
from retrysafe.operators.resolutions import DEFAULT_CONTENT_TYPE, DEFAULT_STATUS, GivenAnswer, decide_answer
from retrysafe.operators.session import LeftOpen

__all__ = ["add_parsers", "decide_forget", "decide_release", "decide_resolve", "is_forgotten"]

MAX_OTHER_RECORDS = 10_000
"""How many records are examined to find out which application has an id, in stores that do not list by id."""


# Parsers ------------------------------------------------------------------------------------------


def add_parsers(verbs: Any) -> None:
    resolve = verbs.add_parser(
        "resolve",
        help="decide how an uncertain key ended",
        description="For keys that are uncertain, and for lapsed keys that will become uncertain. A decision is final: "
        "it cannot be changed, and neither can its answer. If the owner, another person or a worker settles the key "
        "first, the command fails and changes nothing. If the application has a key ring, give --app instead of a URL: "
        "without the ring the application could not read the answer. The command refuses --answer if the record or "
        "others of its application are visibly sealed, but it looks at a limited number of them. For an "
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
    resolve.add_argument(
        "--status", type=int, help=f"with --answer: the status to replay, as your route gives it ({DEFAULT_STATUS})"
    )
    resolve.add_argument(
        "--content-type", help=f"with --answer: the content type to replay ({DEFAULT_CONTENT_TYPE}; '': none)"
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
        description="Erases the answer, the input, the progress and the note of a finished key, and keeps the fact "
        "that it was done: a retry still does not run. `retrysafe erase --scope` does it for a whole tenant.",
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
    if args.answer and not args.happened:  # before the file is read
        raise UsageError("--answer is the answer to replay: give it together with --happened")
    if args.all and args.answer:
        raise UsageError("--all --answer: one answer cannot be that of many requests; leave --answer out")
    answer = decide_answer(happened=args.happened, given=_read_answer(args))
    with open_session(args) as session:
        return _act(args, session, make_resolve(session, args.because or "", happened=args.happened, answer=answer))


def _read_answer(args: argparse.Namespace) -> GivenAnswer:
    if not args.answer:
        return GivenAnswer(False, b"", args.status, args.content_type)
    try:
        body = sys.stdin.buffer.read() if args.answer == "-" else Path(args.answer).read_bytes()
    except OSError as error:
        raise UsageError(f"--answer {args.answer}: {error.strerror}") from error
    return GivenAnswer(True, body, args.status, args.content_type)


def run_release(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        return _act(args, session, make_release(args.because or "", owner_is_dead=args.owner_is_dead))


def run_forget(args: argparse.Namespace) -> int:
    args.all = False
    with open_session(args) as session:
        return _act(args, session, make_forget())


def _act(args: argparse.Namespace, session: Session, action: KeyAction) -> int:
    read_reason(args, action.name)  # without a reason nothing is read
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
    finder = RecordFinder(session, query, to_act=True, by_id=args.id, report=make_progress_reporter())
    found = [each for each in finder if each.namespace == session.namespace]
    if finder.next_cursor:
        raise UsageError(
            f"the search for {args.key!r} ended after {finder.examined:,} records, and there are more: another key "
            "with this text may exist. Give --scope; or the id that `retrysafe keys show` prints, and --id"
        )
    if not found:
        raise no_key_error(args, session, finder)
    if len(found) > 1:
        which = "; ".join(f"{each.id.hex()[:16]} ({each.kind}, {each.scope})" for each in found[:10])
        raise UsageError(
            f"{args.key!r} names {len(found)} keys of namespace {session.namespace!r}: {which}; give --scope, "
            "--namespace, or the id of one and --id"
        )
    return found[0]


def no_key_error(args: argparse.Namespace, session: Session, finder: RecordFinder) -> NotFound:
    """There is no such key here. Names everything that was looked for, and the application that has the id."""
    scope = "" if args.scope is None else f" in scope {args.scope!r}"
    meant = finder.near.describe() or suggest_scope(session, session.namespace, args.scope)
    told = f"{args.key!r} names 0 keys of namespace {session.namespace!r}{scope}{meant}"
    elsewhere = sorted(find_namespaces_of_id(session, args.key))
    if elsewhere:
        return NotFound(told, f"its id is one of another application: give --namespace {shlex.quote(elsewhere[0])}")
    others = "leave --scope out to search all scopes; " if scope else ""
    listing = build_command("keys", "list", namespace=session.namespace)
    return NotFound(told, f"{others}`{listing}` lists the keys; --namespace names another application")


def find_namespaces_of_id(session: Session, digits: str) -> set[str]:
    """The applications with a record whose id begins with these digits, among a bounded number of records."""
    query = RecordQuery(digits)
    if not query.digits:
        return set()
    return {each.namespace for each in RecordFinder(session, query, MAX_OTHER_RECORDS, by_id=True)}


def _act_on_one(args: argparse.Namespace, session: Session, action: KeyAction) -> int:
    record = find_one(args, session)
    with gate.hold():
        after, audit = act_on_record(session, record, action, read_reason(args, action.name), args.attempt)
    shown = {"id": record.id.hex(), "key": record.key, "state": after.state.value, "attempt": after.attempt}
    if args.json:
        print_json({**shown, "action": action.name, "audit": audit})
    else:
        print_line(f"{record.id.hex()[:12]}  {after.state.value}  {record.key}  attempt {after.attempt}")
    return DONE


def _act_on_all(args: argparse.Namespace, session: Session, action: KeyAction) -> int:
    """Act on the keys that match now, at most `--cap`. What arrives later is not touched; what changed is skipped."""
    if args.older_than < 0:
        raise UsageError(f"--older-than {args.older_than:g}: give 0 seconds or more")
    wanted = BulkFilter(args.scope, args.target or None, older_than=round(args.older_than * SECOND_MICROS))
    bulk = BulkAction(session, action, wanted)
    choice = bulk.choose(args.cap)
    if not args.yes:
        _print_choice(args, choice)
        print_note(f"{len(choice.chosen)} would be changed, {choice.refused} left alone; add --yes to do it")
        return DONE
    progress, output, changed = ProgressLine("changed", 100), PatientOutput(), 0

    def report(result: RowResult) -> None:
        nonlocal changed
        changed += result.done
        told = "changed" if result.done else "skipped: it changed underneath"
        output.show(lambda: _print_result(args, result.record, told))
        progress.advance(changed)
        gate.check()

    reason = read_reason(args, action.name)
    try:
        with gate.hold():
            found = bulk.act(choice, reason, {"target": args.target}, report)
    except (KeyboardInterrupt, LeftOpen):
        print_note(f"interrupted: {changed} of {len(choice.chosen)} changed; give the same command again for the rest")
        raise
    finally:
        progress.end()
    print_note(
        f"{found.changed} changed, {found.skipped} skipped, {choice.refused} left alone; audit row {found.audit[:32]}"
    )
    if found.skipped:
        why = build_command("keys", "why", "ID", namespace=session.namespace)
        print_note(f"somebody was quicker for {found.skipped}: look what they decided, `{why}`, before you go on")
    output.check()
    return CHANGED if found.skipped else DONE


def _print_choice(args: argparse.Namespace, choice: BulkSelection) -> None:
    if not args.json and sys.stdout.isatty():
        rows = ((each.id.hex()[:12], each.target, each.key, "would change") for each, _ in choice.chosen)
        print_table(("id", "target", "key", "result"), rows)
        return
    for record, _ in choice.chosen:
        _print_result(args, record, "would change")


def _print_result(args: argparse.Namespace, record: Record, result: str) -> None:
    if args.json:
        print_json({"id": record.id.hex(), "key": record.key, "target": record.target, "result": result})
    else:
        print_line(f"{record.id.hex()[:12]}  {record.target}  {record.key}  {result}")
