"""`retrysafe keys list|show|resolve URL`: what is in the store, for whoever was paged."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

from retrysafe.cli.finding import DEFAULT_NAMESPACE, EXAMINED, Finder, Wanted
from retrysafe.cli.listing import iter_records
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
NOBODY = bytes(32)
"""The id of no record: looking for it tells the store's time."""


def add(commands: Any) -> None:
    parser = commands.add_parser("keys", help="look at the keys in a store")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    listing = verbs.add_parser("list", help="list keys")
    listing.add_argument("url", metavar="URL")
    listing.add_argument("--state", choices=sorted(STATES), help="only keys in this state")
    listing.add_argument("--kind", choices=get_args(Kind), help="only keys of this kind")
    listing.add_argument("--scope", help="only keys of this tenant or function")
    listing.add_argument("--namespace", help="only keys of this application")
    listing.add_argument("--lapsed", action="store_true", help="only claimed keys whose owner went silent")
    listing.add_argument("--limit", type=int, default=50, help="how many at most (50)")
    listing.add_argument(
        "--count", action="store_true", help="also say how many stand where; this reads the whole store"
    )
    listing.add_argument("--json", action="store_true", help="one JSON object per line")
    listing.set_defaults(run=run_list)

    show = verbs.add_parser(
        "show",
        help="everything about one key, or about all keys spelled like it",
        description="With --scope, or by its id, it is found at once. Otherwise records are looked at one after the "
        "other, in the store's order: what is found is shown as it comes, and --after goes on where a search ended.",
    )
    show.add_argument("url", metavar="URL")
    show.add_argument(
        "key", metavar="KEY", help="the key as the client sent it, or the first 8 or more digits of its id"
    )
    show.add_argument("--scope", help="whose key: the tenant, function, operation, provider, queue or inbox")
    show.add_argument("--namespace", help="of which application (with --scope: default; otherwise any)")
    show.add_argument("--kind", choices=get_args(Kind), help="only a key of this kind")
    show.add_argument(
        "--examine", type=int, metavar="N", help=f"without --scope: look at so many records at most ({EXAMINED})"
    )
    show.add_argument("--after", default="", metavar="CURSOR", help="go on where a search ended")
    show.add_argument("--body", action="store_true", help="also show the stored answer")
    show.add_argument("--json", action="store_true", help="one JSON object per line")
    show.set_defaults(run=run_show)

    resolve = verbs.add_parser(
        "resolve",
        help="say how something ended that nobody knows of",
        description="For keys that are uncertain, and for lapsed ones that will be. Its owner, another person or a "
        "worker may be quicker: then nothing is changed, and you are told. Where the application has a key ring, never "
        "give --answer here: the application could not read it. Use safe.resolve() from Python. It is refused where "
        "the record shows that it is sealed; many do not. Of an operation, --happened completes the whole of it.",
    )
    resolve.add_argument("url", metavar="URL")
    resolve.add_argument("key", metavar="KEY", help="the key, or the first 8 or more digits of its id")
    how = resolve.add_mutually_exclusive_group(required=True)
    how.add_argument("--happened", action="store_true", help="it was done: a retry gets the answer and does not run")
    how.add_argument("--did-not-happen", action="store_true", help="it was not done: the next retry runs it")
    resolve.add_argument(
        "--answer",
        metavar="FILE",
        help="with --happened: the body to replay ('-' for standard input); not where a key ring is set",
    )
    resolve.add_argument("--status", type=int, default=200, help="with --answer: its status (200)")
    resolve.add_argument("--content-type", default="application/json", help="with --answer (application/json)")
    resolve.add_argument("--because", default="", metavar="TEXT", help="what showed it; needed with --did-not-happen")
    resolve.add_argument("--attempt", type=int, help="only if it is still this attempt that you looked at")
    resolve.add_argument("--id", action="store_true", help="KEY is an id, or its first 8 or more digits, and no key")
    resolve.add_argument("--scope", help="whose key, if several have it")
    resolve.add_argument("--namespace", default="default", help="of which application (default)")
    resolve.set_defaults(run=run_resolve)


def run_list(given: argparse.Namespace) -> int:
    if given.limit < 1:
        raise UsageError(f"--limit {given.limit}: ask for at least one")
    store = open_store(given.url)
    try:
        wanted = List(
            namespace=given.namespace,
            state=STATES.get(given.state or ""),
            kind=given.kind,
            scope=given.scope,
            lapsed=given.lapsed,
            limit=PAGE_ROWS,
        )
        found = _take_first(iter_records(store.execute, wanted), given.limit)
        now = store.execute(Lookup(NOBODY)).now
        counted = store.execute(Stats(namespace=given.namespace)) if given.count else None
    finally:
        store.close()
    newest_first = sorted(found, key=lambda record: record.created, reverse=True)
    for record in newest_first:
        print(json.dumps(summarize_record(record)) if given.json else format_line(record, now))
    if not given.json or counted is not None:
        print(f"{len(found)} shown; {totals(counted)}", file=sys.stderr)
    return 0


def totals(counted: StatsReply | None) -> str:
    if counted is None:
        return "--count says how many stand where"
    return (
        f"in all {counted.claimed} claimed ({counted.lapsed} lapsed), {counted.released} released, "
        f"{counted.completed} completed ({counted.expired} expired), {counted.uncertain} uncertain"
    )


def run_show(given: argparse.Namespace) -> int:
    store = open_store(given.url)
    try:
        finder = Finder(
            store, Wanted(given.key, given.scope, given.namespace, given.kind), most=given.examine, after=given.after
        )
        shown = 0
        for record in finder:
            shown += 1
            now = store.execute(Lookup(NOBODY)).now
            show(record, now, body=given.body, as_json=given.json)
    finally:
        store.close()
    if finder.unfinished:
        print(go_on(finder), file=sys.stderr)
    elif not shown:
        print(not_there(given), file=sys.stderr)
    return 0 if shown else 1


def show(record: Record, now: int, *, body: bool, as_json: bool) -> None:
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
    print(text, flush=True)  # a search may go on for long


def go_on(finder: Finder) -> str:
    looked = finder.search.looked if finder.search is not None else 0
    return (
        f"looked at {looked:,} records; there are more: go on with --after {finder.unfinished} "
        "or find it at once with --scope SCOPE (and --namespace)"
    )


def not_there(given: argparse.Namespace) -> str:
    if given.scope is None:
        behind = " behind that place" if given.after else ""
        return f"no key {given.key!r}{behind}; `retrysafe keys list URL` shows what there is"
    namespace = given.namespace or DEFAULT_NAMESPACE
    return (
        f"no key {given.key!r} in scope {given.scope!r} of namespace {namespace!r}; another application's is found "
        "with --namespace, and without --scope all are searched"
    )


def run_resolve(given: argparse.Namespace) -> int:
    if given.answer and not given.happened:
        raise UsageError("--answer says what it answered: give it with --happened")
    answer_ = None
    if given.answer:
        body = sys.stdin.buffer.read() if given.answer == "-" else Path(given.answer).read_bytes()
        answer_ = Answer(given.status, body, {"content-type": given.content_type})
    store = open_store(given.url)
    try:
        finder = Finder(store, Wanted(given.key, given.scope, given.namespace), to_act=True, by_id=given.id)
        found = [each for each in finder if each.namespace == given.namespace]
        if finder.unfinished:
            looked = finder.search.looked if finder.search is not None else 0
            raise UsageError(
                f"{given.key!r} was searched for among {looked:,} records, and there are more: whether it is the only "
                "one of that name is not known. Give --scope; or its id as `retrysafe keys show` finds it, and --id"
            )
        if len(found) != 1:
            which = "; ".join(f"{each.id.hex()[:16]} ({each.kind}, {each.scope})" for each in found[:10])
            raise UsageError(
                f"{given.key!r} names {len(found)} keys of namespace {given.namespace!r}{': ' + which if which else ''}"
                "; give --scope, --namespace, or the id of one and --id"
            )
        if answer_ is not None and is_sealed(found[0]):
            raise UsageError(
                f"{given.key!r} belongs to an application with a key ring, and the command line has none: the "
                "application could not read this answer, and nobody could resolve it again. Nothing was changed. Say "
                f'it from Python: safe.resolve("{found[0].id.hex()}", happened=True, answer=Answer(...), '
                'because="..."); or leave --answer out, and a retry is told that the answer was not kept'
            )
        said = resolve_uncertain(
            found[0].id,
            happened=given.happened,
            answer=answer_,
            because=given.because,
            namespace=given.namespace,
            attempt=given.attempt,
        )
        record = run(said, lambda op: store.execute(cast("Op[Any]", op)))
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
    whose, key, began = _shorten(record.scope, 24), _shorten(record.key, 36), format_time(record.created)
    return f"{record.id.hex()[:12]}  {state:9}  {record.kind:9}  {whose:24}  {key:36}  #{record.attempt}  {began}"


def describe_state(record: Record, now: int) -> str:
    return f"{record.state.value} (lapsed)" if record.lapsed(now) else record.state.value


def _shorten(text: str, width: int) -> str:
    printable = "".join(each if each.isprintable() else "?" for each in text)
    return printable if len(printable) <= width else printable[: width - 1] + "…"
