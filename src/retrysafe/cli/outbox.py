"""`retrysafe outbox list|revive|assign URL`: jobs that wait, dead letters, and whose they are."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from retrysafe.cli.finding import LEAST_DIGITS
from retrysafe.core.jobs import AssignJobs, ListJobs, ReviveJob, StagedJob
from retrysafe.core.times import format_time
from retrysafe.errors import UsageError
from retrysafe.stores.base import Store
from retrysafe.stores.registry import open_store

PAGE_ROWS = 1000
JOB_DIGITS = 32


def add(commands: Any) -> None:
    parser = commands.add_parser("outbox", help="look at staged jobs, revive dead ones, say whose they are")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    listing = verbs.add_parser("list", help="list staged jobs in their order, with why the last delivery failed")
    listing.add_argument("url", metavar="URL")
    listing.add_argument("--dead", action="store_true", help="only dead letters")
    listing.add_argument("--namespace", help="only jobs of this application ('': of none)")
    listing.add_argument("--limit", type=int, default=50, help="how many at most (50)")
    listing.add_argument("--json", action="store_true", help="one JSON object per line")
    listing.set_defaults(run=run_list)

    revive = verbs.add_parser("revive", help="let a dead letter be delivered again")
    revive.add_argument("url", metavar="URL")
    revive.add_argument(
        "id", metavar="ID", help="the job's id, as `outbox list` shows it, or its first 8 or more digits"
    )
    revive.add_argument("--namespace", required=True, help="whose job it is")
    revive.set_defaults(run=run_revive)

    assign = verbs.add_parser(
        "assign",
        help="say whose the jobs are that have no namespace",
        description="Jobs that were staged by a release that did not write down whose they are go on by themselves "
        "where one application uses the store. Where several do, they wait for this.",
    )
    assign.add_argument("url", metavar="URL")
    assign.add_argument("--namespace", required=True, help="the application they are given to")
    assign.set_defaults(run=run_assign)


def open_outbox_store(url: str) -> Store:
    store = open_store(url)
    if not store.capabilities.outbox:
        store.close()
        raise UsageError(f"the store {store.capabilities.name!r} has no outbox: jobs cannot be staged in it")
    return store


def run_list(given: argparse.Namespace) -> int:
    if given.limit < 1:
        raise UsageError(f"--limit {given.limit}: ask for at least one")
    store = open_outbox_store(given.url)
    try:
        found = store.execute(ListJobs(given.dead, limit=given.limit, namespace=given.namespace))
    finally:
        store.close()
    for staged in found:
        print(json.dumps(summarize_job(staged)) if given.json else format_line(staged))
    if not given.json:
        print(f"{len(found)} shown", file=sys.stderr)
    return 0


def run_revive(given: argparse.Namespace) -> int:
    store = open_outbox_store(given.url)
    try:
        job_id = find_dead_id(store, given.id, given.namespace)
        done = store.execute(ReviveJob(job_id, namespace=given.namespace))
    finally:
        store.close()
    if not done:
        print(f"no dead job {given.id!r} in namespace {given.namespace!r}; see `outbox list --dead`", file=sys.stderr)
        return 1
    print("it is delivered again")
    return 0


def find_dead_id(store: Store, wanted: str, namespace: str) -> str:
    """The whole id of the one dead job whose id begins so; `wanted` itself where there is none, or it is too short."""
    low = wanted.lower()
    if not LEAST_DIGITS <= len(low) < JOB_DIGITS:
        return wanted
    found: list[str] = []
    after = 0
    while page := store.execute(ListJobs(True, after=after, limit=PAGE_ROWS, namespace=namespace)):
        found += [each.job.id for each in page if each.job.id.startswith(low)]
        after = page[-1].sequence
    if len(found) > 1:
        raise UsageError(f"{wanted!r} names {len(found)} dead jobs: {', '.join(found[:10])}; give more digits of one")
    return found[0] if found else wanted


def run_assign(given: argparse.Namespace) -> int:
    if not given.namespace:
        raise UsageError("--namespace '': name the application they belong to")
    store = open_outbox_store(given.url)
    try:
        done = store.execute(AssignJobs(given.namespace))
    finally:
        store.close()
    print(f"{done} jobs belong to {given.namespace!r} now")
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
    told = summarize_job(staged)
    order = f"  order {staged.job.order}" if staged.job.order else ""
    error = f"  {staged.error}" if staged.error else ""
    what = f"{told['id']}  {told['state']:7}  {staged.namespace or '(none)'}  {staged.job.topic}{order}"
    return f"{what}  {staged.attempts} deliveries  due {told['due']}{error}"
