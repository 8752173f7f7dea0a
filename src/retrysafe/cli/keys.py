"""`retrysafe keys list|show|why|export`: look at keys. key_actions.py has the verbs that change them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, get_args

from retrysafe.cli import exits, key_actions
from retrysafe.cli.output import (
    ENCRYPTED,
    ProgressLine,
    format_count,
    make_progress_reporter,
    print_json,
    print_note,
    print_pairs,
    print_table,
    shorten,
)
from retrysafe.cli.parsing import add_json, add_namespace
from retrysafe.cli.session import NO_RECORD_ID, Session, open_session
from retrysafe.cli.signals import gate
from retrysafe.core.moves import is_submitted
from retrysafe.core.ops import List, Stats, StatsReply
from retrysafe.core.records import Kind, Record
from retrysafe.core.states import STATES, State
from retrysafe.core.times import format_time
from retrysafe.core.trace_context import read_traceparent
from retrysafe.engine.audit import AUDIT_KIND
from retrysafe.engine.sealing import SEALED_HEADERS
from retrysafe.engine.why import explain, is_run, state_for_people
from retrysafe.errors import StoreError, UsageError
from retrysafe.operators.follow_up import build_command, describe_action
from retrysafe.operators.name_check import describe_unknown_name, suggest_scope
from retrysafe.operators.near_keys import NearKeys
from retrysafe.operators.record_search import (
    DEFAULT_NAMESPACE,
    MAX_EXAMINED_RECORDS,
    RecordFinder,
    RecordQuery,
    bound_pages,
    count_examined,
    iter_records,
)

PAGE_ROWS = 200
MAX_SORTED_ROWS = 10_000
"""A longer list is printed as it is read, in the store's order."""
SHOWN_BODY_BYTES = 2000
COLUMNS = ("id", "state", "kind", "scope", "key", "attempt", "created", "namespace")
WIDTHS = (12, 9, 9, 24, 36, 3, 20)
KINDS = (*get_args(Kind), AUDIT_KIND)

__all__ = ["NO_RECORD_ID", "add_parser", "describe_state"]


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "keys",
        help="look at keys and decide about them",
        examples=("retrysafe keys list --state uncertain", "retrysafe keys why order-7"),
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=type(parser))
    _add_list(verbs)
    _add_show(verbs)
    _add_why(verbs)
    key_actions.add_parsers(verbs)
    _add_export(verbs)


def add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state", choices=sorted(STATES), help="only keys in this state (uncertain: lapsed guards too)"
    )
    parser.add_argument("--kind", choices=KINDS, help="only keys of this kind")
    parser.add_argument("--scope", help="only keys of this tenant or function")
    parser.add_argument("--lapsed", action="store_true", help="only claimed keys whose lease has lapsed")


def _add_list(verbs: Any) -> None:
    listing = verbs.add_parser(
        "list",
        help="list keys",
        takes_url=True,
        examples=(
            "retrysafe keys list sqlite:///app.db --state uncertain",
            "retrysafe keys list --scope acme --json | jq .key",
        ),
    )
    add_filters(listing)
    add_namespace(listing, acts=False)
    listing.add_argument("--limit", type=int, default=50, help="print at most this many (50)")
    listing.add_argument(
        "--count", action="store_true", help="also count the keys in each state; this reads the whole store"
    )
    add_json(listing)
    listing.set_defaults(run=run_list)


def _add_show(verbs: Any) -> None:
    show = verbs.add_parser(
        "show",
        help="show one key, or all keys with this text",
        description="With --scope, or by its id, a key is found at once. Otherwise the store is searched record by "
        "record. Each match is printed as it is found. --after continues a search that ended at its limit.",
        takes_url=True,
        examples=("retrysafe keys show order-7 --scope acme", "retrysafe keys show 5f3a9c01 --body"),
    )
    _add_search(show)
    show.add_argument("--body", action="store_true", help="also show the stored answer")
    add_json(show)
    show.set_defaults(run=run_show)


def _add_why(verbs: Any) -> None:
    why = verbs.add_parser(
        "why",
        help="why a key is in its state, what a retry gets, what you can do",
        takes_url=True,
        examples=("retrysafe keys why order-7", "retrysafe keys why order-7 --scope acme --json"),
    )
    _add_search(why)
    add_json(why)
    why.set_defaults(run=run_why)


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "key", metavar="KEY", help="the key as the client sent it, or the first 8 or more digits of its id"
    )
    parser.add_argument(
        "--scope", help="the scope of the key: its tenant, function, operation, provider, queue or inbox"
    )
    parser.add_argument(
        "--namespace", help="the application of the key (with --scope: the setting, else 'default'; otherwise any)"
    )
    parser.add_argument("--kind", choices=KINDS, help="only a key of this kind")
    parser.add_argument(
        "--examine",
        type=int,
        metavar="N",
        help=f"without --scope: search at most this many records ({MAX_EXAMINED_RECORDS})",
    )
    parser.add_argument("--after", default="", metavar="CURSOR", help="continue a search that ended at its limit")


def _add_export(verbs: Any) -> None:
    export = verbs.add_parser(
        "export",
        help="write keys as JSON lines, all of them",
        description="Reads the store page by page, in bounded memory. Bodies are left out unless --body is given.",
        takes_url=True,
        examples=(
            "retrysafe keys export --scope acme > acme.jsonl",
            "retrysafe keys export --after CURSOR >> all.jsonl",
        ),
    )
    add_filters(export)
    add_namespace(export, acts=False)
    export.add_argument("--body", action="store_true", help="with the stored answers")
    export.add_argument("--after", default="", metavar="CURSOR", help="continue an export that was interrupted")
    export.set_defaults(run=run_export, json=True)


# Lists ------------------------------------------------------------------------------------------


def build_query(args: argparse.Namespace) -> List:
    if args.lapsed and args.state not in (None, "claimed"):
        raise UsageError(f"--lapsed --state {args.state}: only claimed keys can be lapsed")
    return List(
        namespace=args.namespace,
        state=STATES.get(args.state or ""),
        kind=args.kind,
        scope=args.scope,
        lapsed=args.lapsed,
        limit=PAGE_ROWS,
    )


def is_shown(args: argparse.Namespace, record: Record) -> bool:
    """Audit rows are shown by `retrysafe audit`, and here by their kind; and with what is uncertain, if a command died:
    figures and alerts count it."""
    return record.kind != AUDIT_KIND or args.kind == AUDIT_KIND or args.state == "uncertain"


def run_list(args: argparse.Namespace) -> int:
    if args.limit < 1:
        raise UsageError(f"--limit {args.limit}: give 1 or more")
    with open_session(args) as session:
        now = session.read_time()
        # Not more than is shown: each row may be another page of the disk.
        query, progress = replace(build_query(args), limit=min(PAGE_ROWS, args.limit)), ProgressLine("records", 1_000)
        listed = iter_records(session.execute, bound_pages(query), progress.advance)
        found: Any = _take_first((each for each in listed if is_shown(args, each)), args.limit)
        if args.limit <= MAX_SORTED_ROWS:
            found = sorted(found, key=lambda record: record.created, reverse=True)
            progress.end()
        shown = 0
        if args.json:
            for shown, record in enumerate(found, 1):  # noqa: B007  # the last number is how many there were
                print_json(summarize_record(record, now))
        else:
            shown = print_table(COLUMNS, (format_row(record, now) for record in found), WIDTHS)
        counted = session.execute(Stats(namespace=args.namespace)) if args.count else None
        unknown = "" if shown else describe_unknown(args, session)
    if unknown:
        print_note(unknown)
    if not args.json or counted is not None:
        print_note(f"{shown} shown; {format_totals(counted)}")
    return exits.DONE


def format_totals(counted: StatsReply | None) -> str:
    if counted is None:
        return "--count also counts the keys in each state"
    return (
        f"in all {counted.claimed} claimed ({counted.lapsed} lapsed), {counted.released} released, "
        f"{counted.completed} completed ({counted.expired} expired), {counted.uncertain} uncertain"
    )


def run_export(args: argparse.Namespace) -> int:
    query = bound_pages(build_query(args))
    with open_session(args) as session:
        progress, number, unreadable, cursor = ProgressLine("records", 1_000), 0, 0, args.after
        examined = 0
        note_full_read(args, session)
        now = session.read_time()
        parts = split_uncertain(query)
        if args.after and len(parts) > 1:
            raise UsageError("--after with --state uncertain: it is two lists; export it in one go")
        try:
            for part, keep in parts:
                while True:
                    page = session.execute(replace(part, cursor=cursor))
                    unreadable += len(page.unreadable)
                    with gate.hold():  # a page is written as a whole
                        for record in page.records:
                            if is_shown(args, record) and (keep is None or record.on_lapse == keep):
                                print_json(describe_record(record, now, body=args.body))
                                number += 1
                        sys.stdout.flush()  # before the cursor moves: what it passes was written
                    cursor = page.cursor
                    if not cursor:
                        break
                    gate.check()
                    if number and number % 50_000 < PAGE_ROWS:
                        print_note(f"so far {number:,}; after an interruption continue with --after {cursor}")
                    examined += count_examined(page, part.limit, part.examine)
                    progress.advance(examined, session.estimate_progress(cursor))
        except (KeyboardInterrupt, StoreError, OSError) as error:
            if not isinstance(error, BrokenPipeError):
                print_note(describe_interruption(cursor if len(parts) == 1 else "", cut=isinstance(error, OSError)))
            raise
        finally:
            progress.end()
        check_written(args, session, number + unreadable)
    print_note(f"{number} written")
    if unreadable:
        are = "is" if unreadable == 1 else "are"
        which = f"{format_count(unreadable, 'record')} could not be read and {are} missing"
        why = (
            "damaged, or its encryption key is not in the ring"
            if session.has_ring
            else "if there is a key ring, give --app"
        )
        print_note(f"{which}: {why}")
    return exits.REFUSED if unreadable else exits.DONE


def check_written(args: argparse.Namespace, session: Session, number: int) -> None:
    """Raise NotFound if nothing was written, and no record has the name that was asked for."""
    unknown = "" if number or args.after else describe_unknown(args, session)
    if unknown:
        raise exits.NotFound(f"0 written: {unknown}")


def describe_unknown(args: argparse.Namespace, session: Session) -> str:
    """Nothing was listed: say so if the store has no record of this namespace and scope in any state."""
    all_read = args.state is None and args.kind is None and not args.lapsed
    return describe_unknown_name(session, args.namespace, args.scope, all_read=all_read)


def describe_interruption(cursor: str, *, cut: bool) -> str:
    """How to go on with an export. `cut`: its last page was not written as a whole."""
    if not cursor:
        return "interrupted: give the same command again, from the beginning"
    more = "; the last line may be cut, and the last keys come twice" if cut else ""
    return f"interrupted: continue with --after {cursor}{more}"


def note_full_read(args: argparse.Namespace, session: Session) -> None:
    """Say before a long wait that there is one."""
    if args.scope is not None and args.state not in ("claimed", "uncertain") and not args.lapsed:
        print_note(f"no index of {session.capabilities.name} has scopes: every record is read, which may take a while")


def split_uncertain(query: List) -> list[tuple[List, str | None]]:
    """A list of uncertain keys is two lists: those that are marked, and lapsed guards."""
    if query.state is not State.UNCERTAIN:
        return [(query, None)]
    return [(query, None), (replace(query, state=State.CLAIMED, lapsed=True), "uncertain")]


def _take_first(records: Iterator[Record], limit: int) -> Iterator[Record]:
    return islice(records, limit)  # and not one more: it may be another page


# One key ----------------------------------------------------------------------------------------


def find_and(args: argparse.Namespace, session: Session, show: Any) -> int:
    """Find the keys of a search and show each as it is found."""
    query = RecordQuery(args.key, args.scope, find_namespace(args, session), args.kind)
    finder = RecordFinder(session, query, limit=args.examine, after=args.after, report=make_progress_reporter())
    shown = 0
    for record in finder:
        shown += 1
        show(record, session.read_time())
        sys.stdout.flush()
    if finder.next_cursor:
        print_note(describe_unfinished_search(finder))
    elif not shown:
        raise exits.NotFound(describe_not_found(args, session, finder.near))
    return exits.DONE if shown else exits.NOT_FOUND


def find_namespace(args: argparse.Namespace, session: Session) -> str | None:
    """The application whose key is asked for: with a scope that of the settings or of `--app`, else any."""
    return args.namespace if args.scope is None else session.namespace


def run_show(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        return find_and(args, session, lambda record, now: print_record(args, record, now))


def print_record(args: argparse.Namespace, record: Record, now: int) -> None:
    whole = describe_record(record, now, body=args.body)
    if args.json:
        print_json(whole)
        return
    del whole["lapsed"]
    print_pairs(whole | {"state": describe_state(record, now)})
    print()


def run_why(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        return find_and(args, session, lambda record, now: print_why(args, record, now))


def print_why(args: argparse.Namespace, record: Record, now: int) -> None:
    found = explain(record, now)
    if args.json:
        print_json({**summarize_record(record, now), **found._asdict(), "actions": list(found.actions)})
        return
    short = record.id.hex()[:16]
    print_pairs(
        {
            "key": f"{record.key}  (scope {record.scope}, id {short})",
            "target": record.target,
            "state": describe_state(record, now),
            "because": found.because,
            "a retry": found.next_retry,
            "by itself": found.by_itself,
        }
    )
    for action in found.actions:
        print(f"you can    {describe_action(action, short, record.namespace, record.kind)}")
    print()


def describe_unfinished_search(finder: RecordFinder) -> str:
    return (
        f"searched {finder.examined:,} records; there are more: continue with --after {finder.next_cursor} "
        "or find the key at once with --scope SCOPE (and --namespace)"
    )


def describe_not_found(args: argparse.Namespace, session: Session, near: NearKeys) -> str:
    namespace = find_namespace(args, session) or DEFAULT_NAMESPACE
    meant = near.describe() or suggest_scope(session, namespace, args.scope)
    joint = "" if meant else ";"  # after a question mark there is none
    if args.scope is None:
        after = f" after {args.after}" if args.after else ""
        listing = build_command("keys", "list", namespace=namespace)
        return f"no key {args.key!r}{after}{meant}{joint} `{listing}` lists the keys"
    return (
        f"no key {args.key!r} in scope {args.scope!r} of namespace {namespace!r}{meant}{joint} give "
        "--namespace for another application, or leave out --scope to search all records"
    )


# Records as data --------------------------------------------------------------------------------


def summarize_record(record: Record, now: int) -> dict[str, Any]:
    return {
        "id": record.id.hex(),
        "state": record.state.value,
        "shown_state": state_for_people(record, now),
        "namespace": record.namespace,
        "kind": record.kind,
        "scope": record.scope,
        "key": record.key,
        "target": record.target,
        "attempt": record.attempt,
        "created": format_time(record.created),
        "last_run": format_time(record.started),
        "completed": format_time(record.completed) if record.completed else None,
        "lease_until": format_time(record.lease_until),
        "on_lapse": record.on_lapse,
        "point": record.point or None,
        "expires": format_time(record.expires),
        "status": record.answer.status if record.answer else None,
    }


def describe_record(record: Record, now: int, *, body: bool) -> dict[str, Any]:
    whole = summarize_record(record, now) | {
        "lapsed": record.lapsed(now),
        "run": record.run.hex(),
        "note": record.note,
        "fingerprint": str(record.fingerprint),
        "traceparent": read_traceparent(record) or None,
    }
    return whole | describe_answer(record) if body else whole


def describe_answer(record: Record) -> dict[str, Any]:
    if record.answer is None:
        return {}
    body = record.answer.body[:SHOWN_BODY_BYTES].decode("utf-8", "backslashreplace")
    if record.answer.headers == SEALED_HEADERS:
        body = ENCRYPTED
    return {"headers": list(record.answer.headers), "body": body, "gone": record.answer.gone or None}


def format_row(record: Record, now: int) -> tuple[str, ...]:
    return (
        record.id.hex()[:12],
        describe_short_state(record, now),
        record.kind,
        shorten(record.scope, 24),
        shorten(record.key, 36),
        f"#{record.attempt}",
        format_time(record.created),
        shorten(record.namespace, 24),
    )


def describe_short_state(record: Record, now: int) -> str:
    state = state_for_people(record, now)
    return "lapsed" if state == State.CLAIMED.value and record.lapsed(now) else state


def describe_state(record: Record, now: int) -> str:
    if is_submitted(record) and is_run(record):
        return f"{record.state.value} (submitted, not started)"
    state = state_for_people(record, now)  # a lapsed guard is uncertain, as in figures and filters
    return f"{state} (lapsed)" if record.lapsed(now) else state
