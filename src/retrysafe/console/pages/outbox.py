"""Outbox and dead letters: jobs that wait, jobs whose deliveries all failed, and runs that gave up."""

from __future__ import annotations

from itertools import islice
from typing import Any

from retrysafe.console.access import LOOK
from retrysafe.console.messages import ConsoleResponse
from retrysafe.console.visit import Visit
from retrysafe.core.backlog import JobBacklog, JobBacklogReply
from retrysafe.core.jobs import ListJobs, StagedJob
from retrysafe.core.ops import List
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.engine.audit import AuditRow
from retrysafe.errors import UsageError
from retrysafe.operators.dead_letters import filter_dead
from retrysafe.operators.record_search import PAGE_RECORDS, StateSearch

PAGE_ROWS = 50
EXAMINED_ROWS = 2_000
DEAD_RUNS = 50


def show_outbox(visit: Visit) -> ConsoleResponse:
    request = visit.request
    dead, topic = request.param("dead") == "1", request.param("topic")
    has_outbox = visit.session.capabilities.outbox
    jobs, after = read_jobs(visit, dead, topic, read_sequence(request.param("after"))) if has_outbox else ([], 0)
    runs, complete = find_dead_runs(visit)
    next_url = request.url("/outbox", dead="1" if dead else "", topic=topic, after=after) if after else ""
    return visit.render(
        "outbox.html",
        title="Outbox",
        has_outbox=has_outbox,
        backlog=read_backlog(visit) if has_outbox else None,
        jobs=jobs,
        dead=dead,
        done=find_done(visit),
        topic=topic,
        next_url=next_url,
        runs=runs,
        runs_complete=complete,
        verbs=[verb for verb in ("retry", "drop") if visit.may(f"outbox {verb}")],
        now=visit.now,
    )


def find_done(visit: Visit) -> AuditRow | None:
    """The audit row of the action on a job that led here."""
    row = visit.find_audit_row(visit.request.param("did"))
    return row if row is not None and row.action.startswith("outbox ") else None


def find_dead_runs(visit: Visit) -> tuple[list[Record], bool]:
    """Runs that gave up, and whether these are all."""
    query = List(visit.safe.namespace, State.UNCERTAIN)
    search = StateSearch(visit.session.execute, query, PAGE_RECORDS, EXAMINED_ROWS)
    found = list(islice((each for each in filter_dead(search) if visit.may(LOOK, each)), DEAD_RUNS))
    return found, search.complete and len(found) < DEAD_RUNS


def read_sequence(text: str) -> int:
    if text and (not text.isdecimal() or len(text) > 18):
        raise UsageError(f"after {text!r}: give the number that the link of the page has")
    return int(text or 0)


def read_backlog(visit: Visit) -> JobBacklogReply | None:
    if visit.session.capabilities.backlog == "none":
        return None
    found: JobBacklogReply = visit.session.execute(JobBacklog(visit.safe.namespace))
    return found


def read_jobs(visit: Visit, dead: bool, topic: str, after: int) -> tuple[list[StagedJob], int]:
    """At most a page of jobs, and where to continue; 0 at the end."""
    found: list[StagedJob] = []
    examined = 0
    while len(found) < PAGE_ROWS and examined < EXAMINED_ROWS:
        page: Any = visit.session.execute(ListJobs(dead, after, PAGE_ROWS, namespace=visit.safe.namespace))
        if not page:
            return found, 0
        examined += len(page)
        after = page[-1].sequence
        found += [each for each in page if topic in ("", each.job.topic) and visit.may(LOOK, each)]
        if len(page) < PAGE_ROWS:
            return found, 0
    return found, after
