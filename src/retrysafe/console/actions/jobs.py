"""Retry or drop a job of the outbox, one by one, or all dead letters of a topic that were shown."""

from __future__ import annotations

from itertools import islice

from retrysafe.console.actions.bulk import NOT_ALLOWED, read_number
from retrysafe.console.actions.keys import read_whole
from retrysafe.console.messages import ConsoleResponse, redirect
from retrysafe.console.visit import Visit
from retrysafe.core.jobs import ListJobs, StagedJob
from retrysafe.core.times import format_time
from retrysafe.engine.audit import MAX_NAMED_RECORDS
from retrysafe.errors import UsageError
from retrysafe.operators.errors import ChangedUnderneath, NotFound
from retrysafe.operators.outbox import RETRY, JobAction, act_on_jobs, check_outbox, iter_jobs, make_drop

VERBS: dict[str, JobAction] = {"retry": RETRY, "drop": make_drop()}
EXAMINED_ROWS = 10_000
NOT_SHOWN = "it is not the dead letter any more that was shown"


def find_action(verb: str) -> JobAction:
    if verb not in VERBS:
        raise NotFound(f"there is no action {verb!r}")
    return VERBS[verb]


def iter_dead(visit: Visit, topic: str = "") -> list[StagedJob]:
    """The dead letters of the application among the first EXAMINED_ROWS."""
    return read_dead(visit, topic)[0]


def read_dead(visit: Visit, topic: str = "") -> tuple[list[StagedJob], bool]:
    """The dead letters of the application among the first EXAMINED_ROWS, and whether there are no others."""
    check_outbox(visit.session)
    found = list(islice(iter_jobs(visit.session, visit.safe.namespace, dead=True, topic=None), EXAMINED_ROWS + 1))
    matching = [staged for staged in found[:EXAMINED_ROWS] if topic in ("", staged.job.topic)]
    return matching, len(found) <= EXAMINED_ROWS


def find_dead(visit: Visit, id: str, sequence: int, died: int) -> StagedJob:
    """The dead letter that the page showed. It is looked for at its place, however many are before it. One that was
    retried and died again is another decision."""
    check_outbox(visit.session)
    query = ListJobs(dead=True, after=sequence - 1, limit=1, namespace=visit.safe.namespace)
    for staged in visit.session.execute(query):
        if describe_letter(staged) == f"{id}:{died}":
            found: StagedJob = staged
            return found
    raise ChangedUnderneath(f"the job {id[:32]!r} is not the dead letter any more that was shown; nothing was done")


def describe_letter(staged: StagedJob) -> str:
    """A dead letter, and when it died: what the forms send."""
    return f"{staged.job.id}:{staged.due}"


def act_on_job(visit: Visit, id: str, verb: str) -> ConsoleResponse:
    action = find_action(verb)
    visit.check(action.name)
    staged = find_dead(visit, id, read_whole(visit, "sequence"), read_whole(visit, "died"))
    visit.check(action.name, staged)
    done = act_on_jobs(visit.session, action, [staged], visit.reason, topic=staged.job.topic)
    if not done.changed:
        raise ChangedUnderneath(f"the job {id[:32]!r} changed underneath; nothing was done")
    return redirect(visit.request.url("/outbox", dead="1", did=done.audit))


def preview(visit: Visit) -> ConsoleResponse:
    action = find_action(visit.request.field("verb"))
    visit.check(action.name)
    topic, cap = visit.request.field("topic"), read_number(visit, "cap", MAX_NAMED_RECORDS)
    found, complete = read_dead(visit, topic)
    matching = [staged for staged in found if staged.created <= visit.now]
    allowed = [staged for staged in matching if visit.may(action.name, staged)]
    chosen = allowed[:cap]
    return visit.render(
        "jobs_preview.html",
        title="Bulk action",
        action=action,
        verb=visit.request.field("verb"),
        topic=topic,
        chosen=chosen,
        cap=cap,
        refused=len(matching) - len(allowed),
        complete=complete and len(chosen) == len(allowed),
        as_of=visit.now,
        because=visit.request.field("because"),
        now=visit.now,
    )


def confirm(visit: Visit) -> ConsoleResponse:
    """Only jobs that were shown, and that are dead letters of this topic still."""
    action = find_action(visit.request.field("verb"))
    visit.check(action.name)
    topic, cap = visit.request.field("topic"), read_number(visit, "cap", MAX_NAMED_RECORDS)
    as_of = read_number(visit, "as_of", visit.now)
    wanted = list(dict.fromkeys(visit.request.form.get("row", [])))
    if not 1 <= len(wanted) <= cap:
        raise UsageError(f"{len(wanted)} rows were sent: begin again with the preview, and choose 1 to {cap}")
    dead = {describe_letter(staged): staged for staged in iter_dead(visit, topic) if staged.created <= as_of}
    found = [dead[each] for each in wanted if each in dead]
    chosen = [staged for staged in found if visit.may(action.name, staged)]
    done = act_on_jobs(visit.session, action, chosen, visit.reason, topic=topic, as_of=format_time(as_of), cap=cap)
    gone = [(each.rpartition(":")[0], NOT_SHOWN) for each in wanted if each not in dead]
    gone += [(staged.job.id, NOT_ALLOWED) for staged in found if staged not in chosen]
    return visit.render("jobs_done.html", title="Bulk action", action=action, done=done, skipped=gone)
