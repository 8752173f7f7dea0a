"""`retrysafe keys list|show|resolve URL`: look at the keys in a store, and resolve uncertain ones."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

from retrysafe.cli.record_search import DEFAULT_NAMESPACE, MAX_EXAMINED_RECORDS, RecordFinder, RecordQuery, iter_records
from retrysafe.core.ops import List, Lookup, Op, Stats, StatsReply
from retrysafe.core.records import Answer, Kind, Record
from retrysafe.core.states import STATES
from retrysafe.core.times import format_time
from retrysafe.engine.drive import run
from retrysafe.engine.resolving import resolve_uncertain
from retrysafe.engine.sealing import is_sealed
from retrysafe.errors import UsageError
from retrysafe.stores.registry import open_store

PAGE_ROWS = 200
SHOWN_BODY_BYTES = 2000
NO_RECORD_ID = bytes(32)
"""The id of no record. The reply to its Lookup carries the store's time."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("keys", help="list, show and resolve the keys in a store")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    listing = verbs.add_parser("list", help="list keys")
    listing.add_argument("url", metavar="URL")
    listing.add_argument("--state", choices=sorted(STATES), help="only keys in this state")
    listing.add_argument("--kind", choices=get_args(Kind), help="only keys of this kind")
    listing.add_argument("--scope", help="only keys of this tenant or function")
    listing.add_argument("--namespace", help="only keys of this application")
    listing.add_argument("--lapsed", action="store_true", help="only claimed keys whose lease has lapsed")
    listing.add_argument("--limit", type=int, default=50, help="print at most this many (50)")
    listing.add_argument(
        "--count", action="store_true", help="also count the keys in each state; this reads the whole store"
    )
    listing.add_argument("--json", action="store_true", help="print one JSON object per line")
    listing.set_defaults(run=run_list)

    show = verbs.add_parser(
        "show",
        help="show one key, or all keys with this text",
        description="With --scope, or by its id, a key is found at once. Otherwise the store is searched record by "
        "record. Each match is printed as it is found. --after continues a search that ended at its limit.",
    )
    show.add_argument("url", metavar="URL")
    show.add_argument(
        "key", metavar="KEY", help="the key as the client sent it, or the first 8 or more digits of its id"
    )
    show.add_argument("--scope", help="the scope of the key: its tenant, function, operation, provider, queue or inbox")
    show.add_argument("--namespace", help="the application of the key (with --scope: default; otherwise any)")
    show.add_argument("--kind", choices=get_args(Kind), help="only a key of this kind")
    show.add_argument(
        "--examine",
        type=int,
        metavar="N",
        help=f"without --scope: search at most this many records ({MAX_EXAMINED_RECORDS})",
    )
    show.add_argument("--after", default="", metavar="CURSOR", help="continue a search that ended at its limit")
    show.add_argument("--body", action="store_true", help="also show the stored answer")
    show.add_argument("--json", action="store_true", help="print one JSON object per line")
    show.set_defaults(run=run_show)

    resolve = verbs.add_parser(
        "resolve",
        help="decide how an uncertain key ended",
        description="For keys that are uncertain, and for lapsed keys that will become uncertain. If the owner, "
        "another person or a worker settles the key first, the command fails and changes nothing. If the application "
        "has a key ring, do not give --answer here: the application could not read it. Call safe.resolve() from Python "
        "instead. The command refuses --answer for a record that is visibly sealed, but not every sealed record is. "
        "For an operation, --happened completes the whole operation.",
    )
    resolve.add_argument("url", metavar="URL")
    resolve.add_argument("key", metavar="KEY", help="the key, or the first 8 or more digits of its id")
    how = resolve.add_mutually_exclusive_group(required=True)
    how.add_argument(
        "--happened", action="store_true", help="the work was done: a retry gets the answer and does not run"
    )
    how.add_argument("--did-not-happen", action="store_true", help="the work was not done: the next retry runs it")
    resolve.add_argument(
        "--answer",
        metavar="FILE",
        help="with --happened: the body to replay ('-' for standard input); not with a key ring",
    )
    resolve.add_argument("--status", type=int, default=200, help="with --answer: the status to replay (200)")
    resolve.add_argument(
        "--content-type",
        default="application/json",
        help="with --answer: the content type to replay (application/json)",
    )
    resolve.add_argument("--because", default="", metavar="TEXT", help="how you know; required with --did-not-happen")
    resolve.add_argument("--attempt", type=int, help="only if the key is still in this attempt")
    resolve.add_argument("--id", action="store_true", help="KEY is an id or its first 8 or more digits, not a key")
    resolve.add_argument("--scope", help="the scope of the key, if several scopes have it")
    resolve.add_argument("--namespace", default="default", help="the application of the key (default)")
    resolve.set_defaults(run=run_resolve)


def run_list(args: argparse.Namespace) -> int:
    if args.limit < 1:
        raise UsageError(f"--limit {args.limit}: give 1 or more")
    store = open_store(args.url)
    try:
        query = List(
            namespace=args.namespace,
            state=STATES.get(args.state or ""),
            kind=args.kind,
            scope=args.scope,
            lapsed=args.lapsed,
            limit=PAGE_ROWS,
        )
        found = _take_first(iter_records(store.execute, query), args.limit)
        now = store.execute(Lookup(NO_RECORD_ID)).now
        counted = store.execute(Stats(namespace=args.namespace)) if args.count else None
    finally:
        store.close()
    newest_first = sorted(found, key=lambda record: record.created, reverse=True)
    for record in newest_first:
        print(json.dumps(summarize_record(record)) if args.json else format_line(record, now))
    if not args.json or counted is not None:
        print(f"{len(found)} shown; {format_totals(counted)}", file=sys.stderr)
    return 0


def format_totals(counted: StatsReply | None) -> str:
    if counted is None:
        return "--count also counts the keys in each state"
    return (
        f"in all {counted.claimed} claimed ({counted.lapsed} lapsed), {counted.released} released, "
        f"{counted.completed} completed ({counted.expired} expired), {counted.uncertain} uncertain"
    )


def run_show(args: argparse.Namespace) -> int:
    store = open_store(args.url)
    try:
        query = RecordQuery(args.key, args.scope, args.namespace, args.kind)
        finder = RecordFinder(store, query, limit=args.examine, after=args.after)
        shown = 0
        for record in finder:
            shown += 1
            now = store.execute(Lookup(NO_RECORD_ID)).now
            print_record(record, now, body=args.body, as_json=args.json)
    finally:
        store.close()
    if finder.next_cursor:
        print(describe_unfinished_search(finder), file=sys.stderr)
    elif not shown:
        print(describe_not_found(args), file=sys.stderr)
    return 0 if shown else 1


def print_record(record: Record, now: int, *, body: bool, as_json: bool) -> None:
    state: dict[str, Any] = {"lapsed": record.lapsed(now)} if as_json else {"state": describe_state(record, now)}
    whole = summarize_record(record) | state
    whole |= {
        "run": record.run.hex(),
        "note": record.note,
        "fingerprint": str(record.fingerprint),
    }
    if body:
        whole |= describe_answer(record)
    text = json.dumps(whole) if as_json else "\n".join(f"{name:12} {value}" for name, value in whole.items()) + "\n"
    print(text, flush=True)  # the search may take long: print each match at once


def describe_unfinished_search(finder: RecordFinder) -> str:
    return (
        f"searched {finder.examined:,} records; there are more: continue with --after {finder.next_cursor} "
        "or find the key at once with --scope SCOPE (and --namespace)"
    )


def describe_not_found(args: argparse.Namespace) -> str:
    if args.scope is None:
        after = f" after {args.after}" if args.after else ""
        return f"no key {args.key!r}{after}; `retrysafe keys list URL` lists the keys"
    namespace = args.namespace or DEFAULT_NAMESPACE
    return (
        f"no key {args.key!r} in scope {args.scope!r} of namespace {namespace!r}; give --namespace for another "
        "application, or leave out --scope to search all records"
    )


def run_resolve(args: argparse.Namespace) -> int:
    if args.answer and not args.happened:
        raise UsageError("--answer is the answer to replay: give it together with --happened")
    answer = None
    if args.answer:
        body = sys.stdin.buffer.read() if args.answer == "-" else Path(args.answer).read_bytes()
        answer = Answer(args.status, body, {"content-type": args.content_type})
    store = open_store(args.url)
    try:
        query = RecordQuery(args.key, args.scope, args.namespace)
        finder = RecordFinder(store, query, to_act=True, by_id=args.id)
        found = [each for each in finder if each.namespace == args.namespace]
        if finder.next_cursor:
            raise UsageError(
                f"the search for {args.key!r} ended after {finder.examined:,} records, and there are more: another key "
                "with this text may exist. Give --scope; or the id that `retrysafe keys show` prints, and --id"
            )
        if len(found) != 1:
            which = "; ".join(f"{each.id.hex()[:16]} ({each.kind}, {each.scope})" for each in found[:10])
            raise UsageError(
                f"{args.key!r} names {len(found)} keys of namespace {args.namespace!r}{': ' + which if which else ''}"
                "; give --scope, --namespace, or the id of one and --id"
            )
        if answer is not None and is_sealed(found[0]):
            raise UsageError(
                f"{args.key!r} belongs to an application with a key ring, and this command has none: the application "
                "could not read the answer, and the key could not be resolved again. Nothing was changed. Call it "
                f'from Python: safe.resolve("{found[0].id.hex()}", happened=True, answer=Answer(...), '
                'because="..."); or leave out --answer: a retry then learns that the answer was not kept'
            )
        flow = resolve_uncertain(
            found[0].id,
            happened=args.happened,
            answer=answer,
            because=args.because,
            namespace=args.namespace,
            attempt=args.attempt,
        )
        record = run(flow, lambda op: store.execute(cast("Op[Any]", op)))
    finally:
        store.close()
    print(f"{record.id.hex()[:12]}  {record.state.value}  {record.key}  attempt {record.attempt}")
    return 0


def _take_first(records: Iterator[Record], limit: int) -> list[Record]:
    return [record for record, _ in zip(records, range(limit), strict=False)]


def summarize_record(record: Record) -> dict[str, Any]:
    return {
        "id": record.id.hex(),
        "state": record.state.value,
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


def describe_answer(record: Record) -> dict[str, Any]:
    if record.answer is None:
        return {}
    body = record.answer.body[:SHOWN_BODY_BYTES].decode("utf-8", "backslashreplace")
    return {"headers": list(record.answer.headers), "body": body, "gone": record.answer.gone or None}


def format_line(record: Record, now: int) -> str:
    state = "lapsed" if record.lapsed(now) else record.state.value
    scope, key, created = _shorten(record.scope, 24), _shorten(record.key, 36), format_time(record.created)
    return f"{record.id.hex()[:12]}  {state:9}  {record.kind:9}  {scope:24}  {key:36}  #{record.attempt}  {created}"


def describe_state(record: Record, now: int) -> str:
    return f"{record.state.value} (lapsed)" if record.lapsed(now) else record.state.value


def _shorten(text: str, width: int) -> str:
    printable = "".join(each if each.isprintable() else "?" for each in text)
    return printable if len(printable) <= width else printable[: width - 1] + "…"
