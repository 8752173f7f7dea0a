"""`retrysafe outbox list|revive|assign URL`: list staged jobs, revive dead letters, give jobs a namespace."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from retrysafe.cli.record_search import MIN_ID_DIGITS
from retrysafe.core.jobs import AssignJobs, ListJobs, ReviveJob, StagedJob
from retrysafe.core.times import format_time
from retrysafe.errors import UsageError
from retrysafe.stores.base import Store
from retrysafe.stores.registry import open_store

PAGE_ROWS = 1000
JOB_DIGITS = 32


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("outbox", help="list staged jobs, revive dead letters, give jobs a namespace")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    listing = verbs.add_parser("list", help="list staged jobs in order, with the error of the last delivery")
    listing.add_argument("url", metavar="URL")
    listing.add_argument("--dead", action="store_true", help="only dead letters")
    listing.add_argument("--namespace", help="only jobs of this application ('': jobs without a namespace)")
    listing.add_argument("--limit", type=int, default=50, help="print at most this many (50)")
    listing.add_argument("--json", action="store_true", help="print one JSON object per line")
    listing.set_defaults(run=run_list)

    revive = verbs.add_parser("revive", help="make a dead letter deliverable again")
    revive.add_argument("url", metavar="URL")
    revive.add_argument("id", metavar="ID", help="the job's id from `outbox list`, or its first 8 or more digits")
    revive.add_argument("--namespace", required=True, help="the application that the job belongs to")
    revive.set_defaults(run=run_revive)

    assign = verbs.add_parser(
        "assign",
        help="give jobs without a namespace to an application",
        description="Old releases staged jobs without a namespace. If one application uses the store, its worker "
        "publishes them. If several applications use it, the jobs wait until this command gives them to one.",
    )
    assign.add_argument("url", metavar="URL")
    assign.add_argument("--namespace", required=True, help="the application that gets the jobs")
    assign.set_defaults(run=run_assign)


def open_outbox_store(url: str) -> Store:
    store = open_store(url)
    if not store.capabilities.outbox:
        store.close()
        raise UsageError(
            f"the store {store.capabilities.name!r} has no outbox, so it holds no jobs; use a store "
            "with one, such as SQLite or PostgreSQL"
        )
    return store


def run_list(args: argparse.Namespace) -> int:
    if args.limit < 1:
        raise UsageError(f"--limit {args.limit}: give 1 or more")
    store = open_outbox_store(args.url)
    try:
        found = store.execute(ListJobs(args.dead, limit=args.limit, namespace=args.namespace))
    finally:
        store.close()
    for staged in found:
        print(json.dumps(summarize_job(staged)) if args.json else format_line(staged))
    if not args.json:
        print(f"{len(found)} shown", file=sys.stderr)
    return 0


def run_revive(args: argparse.Namespace) -> int:
    store = open_outbox_store(args.url)
    try:
        job_id = find_dead_id(store, args.id, args.namespace)
        done = store.execute(ReviveJob(job_id, namespace=args.namespace))
    finally:
        store.close()
    if not done:
        print(f"no dead job {args.id!r} in namespace {args.namespace!r}; see `outbox list --dead`", file=sys.stderr)
        return 1
    print("the job will be delivered again")
    return 0


def find_dead_id(store: Store, wanted: str, namespace: str) -> str:
    """The full id of the dead job whose id begins with `wanted`; `wanted` itself if none does, or it is too short."""
    low = wanted.lower()
    if not MIN_ID_DIGITS <= len(low) < JOB_DIGITS:
        return wanted
    found: list[str] = []
    after = 0
    while page := store.execute(ListJobs(True, after=after, limit=PAGE_ROWS, namespace=namespace)):
        found += [each.job.id for each in page if each.job.id.startswith(low)]
        after = page[-1].sequence
    if len(found) > 1:
        raise UsageError(f"{wanted!r} names {len(found)} dead jobs: {', '.join(found[:10])}; give more digits of one")
    return found[0] if found else wanted


def run_assign(args: argparse.Namespace) -> int:
    if not args.namespace:
        raise UsageError("--namespace '': give the name of the application that gets the jobs")
    store = open_outbox_store(args.url)
    try:
        done = store.execute(AssignJobs(args.namespace))
    finally:
        store.close()
    print(f"{done} jobs now belong to {args.namespace!r}")
    return 0


def summarize_job(staged: StagedJob) -> dict[str, Any]:
    return {
        "id": staged.job.id,
        "namespace": staged.namespace,
        "topic": staged.job.topic,
        "order": staged.job.order,
        "state": "dead" if staged.dead else "waiting",
        "deliveries": staged.attempts,
        "created": format_time(staged.created),
        "due": format_time(staged.due),
        "error": staged.error,
    }


def format_line(staged: StagedJob) -> str:
    job = summarize_job(staged)
    order = f"  order {staged.job.order}" if staged.job.order else ""
    error = f"  {staged.error}" if staged.error else ""
    what = f"{job['id']}  {job['state']:7}  {staged.namespace or '(none)'}  {staged.job.topic}{order}"
    return f"{what}  {staged.attempts} deliveries  due {job['due']}{error}"
