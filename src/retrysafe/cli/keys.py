"""`retrysafe keys list|show|resolve URL`: what is in the store, for whoever was paged."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

from retrysafe.cli.listing import pages
from retrysafe.core.ops import List, Lookup, Op, Stats
from retrysafe.core.records import Answer, Kind, Record
from retrysafe.core.states import STATES
from retrysafe.core.times import iso
from retrysafe.engine.drive import run
from retrysafe.engine.resolving import resolved
from retrysafe.errors import UsageError
from retrysafe.stores.base import Store
from retrysafe.stores.registry import open_store

PAGE = 200
SHOWN_BODY = 2000


def add(commands: Any) -> None:
    parser = commands.add_parser("keys", help="look at the keys in a store")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    listing = verbs.add_parser("list", help="list keys, and how many stand where")
    listing.add_argument("url", metavar="URL")
    listing.add_argument("--state", choices=sorted(STATES), help="only keys in this state")
    listing.add_argument("--kind", choices=get_args(Kind), help="only keys of this kind")
    listing.add_argument("--scope", help="only keys of this tenant or function")
    listing.add_argument("--namespace", help="only keys of this application")
    listing.add_argument("--lapsed", action="store_true", help="only claimed keys whose owner went silent")
    listing.add_argument("--limit", type=int, default=50, help="how many at most (50)")
    listing.add_argument("--json", action="store_true", help="one JSON object per line")
    listing.set_defaults(run=run_list)

    show = verbs.add_parser("show", help="everything about one key, or about all keys spelled like it")
    show.add_argument("url", metavar="URL")
    show.add_argument(
        "key", metavar="KEY", help="the key as the client sent it, or the first 8 or more digits of its id"
    )
    show.add_argument("--scope", help="whose key, if several have it")
    show.add_argument("--body", action="store_true", help="also show the stored answer")
    show.add_argument("--json", action="store_true", help="one JSON object per line")
    show.set_defaults(run=run_show)

    resolve = verbs.add_parser(
        "resolve",
        help="say how something ended that nobody knows of",
        description="For keys that are uncertain, and for lapsed ones that will be. Its owner, another person or a "
        "worker may be quicker: then nothing is changed, and you are told. Where a key ring is set use safe.resolve().",
    )
    resolve.add_argument("url", metavar="URL")
    resolve.add_argument("key", metavar="KEY", help="the key, or the first 8 or more digits of its id")
    how = resolve.add_mutually_exclusive_group(required=True)
    how.add_argument("--happened", action="store_true", help="it was done: a retry gets the answer and does not run")
    how.add_argument("--did-not-happen", action="store_true", help="it was not done: the next retry runs it")
    resolve.add_argument(
        "--answer", metavar="FILE", help="with --happened: the body to replay ('-' for standard input)"
    )
    resolve.add_argument("--status", type=int, default=200, help="with --answer: its status (200)")
    resolve.add_argument("--content-type", default="application/json", help="with --answer (application/json)")
    resolve.add_argument("--because", default="", metavar="TEXT", help="what showed it; needed with --did-not-happen")
    resolve.add_argument("--attempt", type=int, help="only if it is still this attempt that you looked at")
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
            limit=PAGE,
        )
        found = _take(pages(store.execute, wanted), given.limit)
        stats = store.execute(Stats())
    finally:
        store.close()
    newest_first = sorted(found, key=lambda record: record.created, reverse=True)
    for record in newest_first:
        print(json.dumps(summary(record)) if given.json else line(record, stats.now))
    if not given.json:
        print(
            f"{len(found)} shown; in all {stats.claimed} claimed ({stats.lapsed} lapsed), {stats.released} released, "
            f"{stats.completed} completed ({stats.expired} expired), {stats.uncertain} uncertain",
            file=sys.stderr,
        )
    return 0


def run_show(given: argparse.Namespace) -> int:
    store = open_store(given.url)
    try:
        found = list(_matching(store, given.key, given.scope))
    finally:
        store.close()
    if not found:
        where = f" in scope {given.scope!r}" if given.scope else ""
        print(f"no key {given.key!r}{where}; `retrysafe keys list URL` shows what there is", file=sys.stderr)
        return 1
    for record in found:
        whole = summary(record) | {"run": record.run.hex(), "note": record.note, "fingerprint": str(record.fingerprint)}
        if given.body:
            whole |= answer(record)
        if given.json:
            print(json.dumps(whole))
        else:
            print("\n".join(f"{name:12} {value}" for name, value in whole.items()), end="\n\n")
    return 0


def run_resolve(given: argparse.Namespace) -> int:
    if given.answer and not given.happened:
        raise UsageError("--answer says what it answered: give it with --happened")
    answer_ = None
    if given.answer:
        body = sys.stdin.buffer.read() if given.answer == "-" else Path(given.answer).read_bytes()
        answer_ = Answer(given.status, body, {"content-type": given.content_type})
    store = open_store(given.url)
    try:
        found = list(_matching(store, given.key, given.scope, given.namespace))
        if len(found) != 1:
            which = "; ".join(f"{each.id.hex()[:16]} ({each.kind}, {each.scope})" for each in found[:10])
            raise UsageError(
                f"{given.key!r} names {len(found)} keys of namespace {given.namespace!r}{': ' + which if which else ''}"
                "; give --scope, --namespace or the id of one"
            )
        said = resolved(
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


def _matching(store: Store, key: str, scope: str | None, namespace: str | None = None) -> Iterator[Record]:
    digits = key.lower()
    as_id = len(digits) >= 8 and all(digit in "0123456789abcdef" for digit in digits)
    if as_id and len(digits) == 64:
        record = store.execute(Lookup(bytes.fromhex(digits))).record
        if record is not None:
            yield record
            return
    for record in pages(store.execute, List(namespace=namespace, scope=scope, limit=PAGE)):
        if record.key == key or (as_id and record.id.hex().startswith(digits)):
            yield record


def _take(records: Iterator[Record], limit: int) -> list[Record]:
    return [record for record, _ in zip(records, range(limit), strict=False)]


def summary(record: Record) -> dict[str, Any]:
    return {
        "id": record.id.hex(),
        "state": record.state.value,
        "namespace": record.namespace,
        "kind": record.kind,
        "scope": record.scope,
        "key": record.key,
        "target": record.target,
        "attempt": record.attempt,
        "created": iso(record.created),
        "last_run": iso(record.started),
        "completed": iso(record.completed) if record.completed else None,
        "lease_until": iso(record.lease_until),
        "on_lapse": record.on_lapse,
        "point": record.point or None,
        "expires": iso(record.expires),
        "status": record.answer.status if record.answer else None,
    }


def answer(record: Record) -> dict[str, Any]:
    if record.answer is None:
        return {}
    body = record.answer.body[:SHOWN_BODY].decode("utf-8", "backslashreplace")
    return {"headers": list(record.answer.headers), "body": body, "gone": record.answer.gone or None}


def line(record: Record, now: int) -> str:
    state = "lapsed" if record.lapsed(now) else record.state.value
    whose, key, began = _short(record.scope, 24), _short(record.key, 36), iso(record.created)
    return f"{record.id.hex()[:12]}  {state:9}  {record.kind:9}  {whose:24}  {key:36}  #{record.attempt}  {began}"


def _short(text: str, width: int) -> str:
    printable = "".join(each if each.isprintable() else "?" for each in text)
    return printable if len(printable) <= width else printable[: width - 1] + "…"
