"""`retrysafe erase --scope`: erase the stored data of one tenant, with a receipt.

Each finished record of the scope is forgotten: its answer, input and progress go, and the fact stays that it was done
until the record expires. So no retry runs again. Unfinished records are left, and named. Erasing again is harmless, so
an interrupted command is simply given again; `--after` saves the part that was done."""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any

from retrysafe.cli import exits
from retrysafe.cli.output import ProgressLine, format_count, print_json, print_note, print_pairs
from retrysafe.cli.parsing import add_json, add_reason
from retrysafe.cli.session import Audit, Session, make_entry, open_session
from retrysafe.cli.signals import gate
from retrysafe.core.ops import List
from retrysafe.core.records import Record
from retrysafe.core.times import format_time
from retrysafe.errors import StoreError, UsageError
from retrysafe.operators.follow_up import build_command, name_scope
from retrysafe.operators.key_actions import decide_forget, is_forgotten
from retrysafe.operators.name_check import suggest_names
from retrysafe.operators.record_search import bound_pages, count_examined

PAGE_ROWS = 200
MAX_NAMED_UNFINISHED = 100
KEPT = (
    "id, scope, key, target, the request's fingerprint (a hash of its body), state and times, until the record "
    "expires: so that no retry runs again, and another request under the key gets 422"
)
LEFT = ("unfinished", "changed_underneath", "unreadable")
"""The counts of a receipt whose records still have their data."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "erase",
        help="erase the stored data of one scope, with a receipt",
        description="Erases the answers, inputs, progress and notes of every finished record of a scope, and prints "
        "a receipt; the audit row keeps it too, with a hash of the scope. The keys, and the fingerprints of their "
        "requests, stay until they expire, so that no retry runs again. Unfinished records are left and counted: "
        "finish them, then erase again. Jobs of the outbox belong to no scope, and are not erased. Without --yes it "
        "only counts.",
        takes_url=True,
        examples=(
            "retrysafe erase --scope acme --because 'request 4711' --yes --json > receipt.json",
            "retrysafe erase --scope acme --because 'request 4711' --yes --after CURSOR",
        ),
    )
    parser.add_argument("--scope", required=True, help="the tenant, account or function whose data goes")
    parser.add_argument("--namespace", help="the application (default: the setting, else 'default')")
    parser.add_argument("--after", default="", metavar="CURSOR", help="continue an erasure that was interrupted")
    parser.add_argument("--yes", action="store_true", help="do it; without this it only counts")
    add_reason(parser)
    add_json(parser, "print the receipt as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not args.scope:
        raise UsageError("--scope '': give the name of a tenant, an account or a function")
    with open_session(args) as session:
        entry = make_entry(args, "erase", scope_sha256=hash_scope(args.scope), dry_run=not args.yes)
        if not args.yes:
            eraser = Eraser(session, args, None)
            eraser.run()
            eraser.check_found()
            return print_receipt(args, eraser.build_receipt(""), "counted only; add --yes to erase")
        with gate.hold(), session.act(entry) as audit:
            eraser = Eraser(session, args, audit)
            try:
                eraser.run()
                eraser.check_found()
            finally:
                audit.result = {k: v for k, v in eraser.build_receipt(audit.id).items() if k != "scope"}
        return print_receipt(args, eraser.build_receipt(audit.id), "")


def hash_scope(scope: str) -> str:
    return hashlib.sha256(scope.encode()).hexdigest()


class Eraser:
    """One walk over the records of a scope, page by page."""

    def __init__(self, session: Session, args: argparse.Namespace, audit: Audit | None) -> None:
        self._session, self._args, self._audit = session, args, audit
        self._began = session.read_time()
        self._counts: Counter[str] = Counter()
        self._unfinished: list[str] = []
        self._cursor = args.after
        self._complete = False

    def run(self) -> None:
        progress = ProgressLine("records", 1_000)
        name = self._session.capabilities.name
        print_note(f"no index of {name} has scopes: every record is read, which may take a while")
        query = bound_pages(List(self._session.namespace, scope=self._args.scope, limit=PAGE_ROWS))
        examined = 0
        try:
            while not self._complete:
                page = self._session.execute(replace(query, cursor=self._cursor))
                for record in page.records:
                    self._counts[self._erase(record)] += 1
                    gate.check()
                self._counts["unreadable"] += len(page.unreadable)
                self._cursor, self._complete = page.cursor, not page.cursor
                examined += count_examined(page, query.limit, query.examine)
                progress.advance(examined, self._session.estimate_progress(self._cursor))
                if self._audit is not None and not self._complete:
                    self._audit.keep_alive()
        except (KeyboardInterrupt, StoreError) as error:
            after = f" with --after {self._cursor}" if self._cursor else ""
            advice = f"give the same command again{after}; what is done stays done"
            if self._audit is not None and isinstance(error, StoreError):
                self._audit.advice = advice  # it becomes part of the hint
            else:
                print_note(f"interrupted: {advice}")
            raise
        finally:
            progress.end()

    def check_found(self) -> None:
        """Raise NotFound if the scope has no record here: a receipt of nothing would look like an erasure."""
        if not self._args.after and not any(self._counts.values()):
            where = f"namespace {self._session.namespace!r}"
            meant = suggest_names(self._session, self._session.namespace, self._args.scope)
            raise exits.NotFound(
                f"--scope {self._args.scope!r}: {where} has no record of it, so nothing was erased{meant}",
                "--namespace NAME names another application",
            )

    def _erase(self, record: Record) -> str:
        """Erase one record, if there is something to erase. Returns what became of it."""
        if is_forgotten(record) and decide_forget(record, self._began).op is not None:
            return "nothing_stored"
        decision = decide_forget(record, self._began)
        if decision.op is None:
            if len(self._unfinished) < MAX_NAMED_UNFINISHED:
                self._unfinished.append(record.id.hex())
            return "unfinished"
        if self._audit is None:
            return "to_erase"
        return "erased" if self._session.execute(decision.op) else "changed_underneath"

    def build_receipt(self, audit: str) -> dict[str, Any]:
        names = ("to_erase", "erased", "nothing_stored", "unfinished", "changed_underneath", "unreadable")
        return {
            "scope": self._args.scope,
            "scope_sha256": hash_scope(self._args.scope),
            "namespace": self._session.namespace,
            "store": self._session.where,
            "began": format_time(self._began),
            "complete": self._complete and not any(self._counts[name] for name in ("to_erase", *LEFT)),
            **{name: self._counts[name] for name in names},
            "unfinished_ids": self._unfinished,
            "next": self._cursor or None,
            "kept": KEPT,
            "audit": audit or None,
        }


def print_receipt(args: argparse.Namespace, receipt: dict[str, Any], note: str) -> int:
    print_json(receipt) if args.json else print_pairs(receipt)
    if note:
        print_note(note)
    left = sum(receipt[name] for name in LEFT)
    if left:
        listing = build_command("keys", "list", *name_scope(args.scope), namespace=receipt["namespace"])
        were, them = ("was", "it") if left == 1 else ("were", "them")
        print_note(f"{format_count(left, 'record')} {were} left; finish {them} and erase again: {listing}")
    return exits.REFUSED if left else exits.DONE
