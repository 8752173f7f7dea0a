"""`retrysafe outbox list|retry|drop|assign`: staged jobs, and dead letters among them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import islice
from typing import Any

from retrysafe.cli.exits import CHANGED, DONE, ChangedUnderneath, NotFound
from retrysafe.cli.output import ENCRYPTED, print_json, print_note, print_table, shorten
from retrysafe.cli.parsing import add_bulk, add_json, add_reason
from retrysafe.cli.session import Session, make_entry, open_session, read_reason
from retrysafe.cli.signals import gate
from retrysafe.core.jobs import AssignJobs, Namespaces, NamespacesReply, StagedJob
from retrysafe.engine.sealing import MAGIC
from retrysafe.errors import UsageError
from retrysafe.operators.follow_up import build_command
from retrysafe.operators.outbox import (
    PAGE_ROWS,
    JobAction,
    act_on_jobs,
    check_outbox,
    iter_jobs,
    make_drop,
    make_retry,
    summarize_job,
)
from retrysafe.operators.record_search import MIN_ID_DIGITS

JOB_DIGITS = 32
COLUMNS = ("id", "state", "namespace", "topic", "deliveries", "due", "error")
RESULT_COLUMNS = ("id", "topic", "result")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "outbox",
        help="jobs that wait to be published",
        examples=("retrysafe outbox list --dead", "retrysafe outbox retry --all --because 'the broker is back' --yes"),
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=type(parser))
    listing = verbs.add_parser(
        "list",
        help="list staged jobs in order, with the error of the last delivery",
        takes_url=True,
        examples=("retrysafe outbox list sqlite:///app.db --dead", "retrysafe outbox list --topic receipts --json"),
    )
    listing.add_argument("--dead", action="store_true", help="only dead letters")
    listing.add_argument("--topic", help="only jobs of this topic")
    listing.add_argument("--namespace", help="only jobs of this application ('': jobs without a namespace)")
    listing.add_argument("--payload", action="store_true", help="also what the job says; it may be personal data")
    listing.add_argument("--limit", type=int, default=50, help="print at most this many (50)")
    add_json(listing)
    listing.set_defaults(run=run_list)
    for verb, text in (("retry", "make dead letters deliverable again"), ("revive", "the old name of `retry`")):
        retry = _add_act(verbs, verb, text, run_retry)
        retry.add_argument("--waiting", action="store_true", help="a job that waits: its next delivery is due now")
    drop = _add_act(verbs, "drop", "delete a job that is not to be delivered; this is final", run_drop)
    drop.add_argument(
        "--waiting", action="store_true", help="a job that waits and that no worker has, not a dead letter"
    )
    assign = verbs.add_parser(
        "assign",
        help="give jobs without a namespace to an application",
        description="Old releases staged jobs without a namespace. If one application uses the store, its worker "
        "publishes them. If several applications use it, the jobs wait until this command gives them to one. Without "
        "--yes it only counts them.",
        takes_url=True,
        examples=(
            "retrysafe outbox list --namespace ''",
            "retrysafe outbox assign --namespace shop --because 'all of them are ours' --yes",
        ),
    )
    assign.add_argument("--namespace", required=True, help="the application that gets the jobs")
    assign.add_argument("--yes", action="store_true", help="do it; without this it only counts")
    add_reason(assign)
    add_json(assign, "print one JSON object")
    assign.set_defaults(run=run_assign)


def _add_act(verbs: Any, verb: str, text: str, run: Any) -> Any:
    parser = verbs.add_parser(
        verb,
        help=text,
        takes_url=True,
        examples=(
            f"retrysafe outbox {verb} 0f3a9c01 --because 'the address was wrong'",
            f"retrysafe outbox {verb} --all --topic receipts --because 'the broker is back' --yes",
        ),
    )
    parser.add_argument("id", metavar="ID", nargs="?", help="the job's id, or its first 8 or more digits")
    parser.add_argument("--all", action="store_true", help="every dead letter that matches, instead of one")
    parser.add_argument("--topic", help="with --all: only jobs of this topic")
    parser.add_argument("--namespace", help="the application (default: the setting, else 'default')")
    add_reason(parser)
    add_bulk(parser)
    add_json(parser)
    parser.set_defaults(run=run, waiting=False)
    return parser


def run_list(args: argparse.Namespace) -> int:
    if args.limit < 1:
        raise UsageError(f"--limit {args.limit}: give 1 or more")
    with open_session(args) as session:
        check_outbox(session)
        found = iter_jobs(session, args.namespace, dead=args.dead, topic=args.topic)
        chosen = islice(found, args.limit)
        if args.json:
            for staged in chosen:
                print_json(summarize_job(staged) | ({"payload": show_payload(staged)} if args.payload else {}))
        else:
            columns = (*COLUMNS, "payload") if args.payload else COLUMNS
            rows = ((*format_row(staged), *([show_payload(staged)] if args.payload else [])) for staged in chosen)
            print_note(f"{print_table(columns, rows)} shown")
    return DONE


def run_retry(args: argparse.Namespace) -> int:
    return run_action(args, make_retry(waiting=args.waiting))


def run_drop(args: argparse.Namespace) -> int:
    return run_action(args, make_drop(waiting=args.waiting))


def run_action(args: argparse.Namespace, action: JobAction) -> int:
    reason = read_reason(args, action.name)
    if args.all == (args.id is not None):
        raise UsageError(f"{action.name}: give the id of a job, or --all")
    with open_session(args) as session:
        check_outbox(session)
        chosen = choose_jobs(session, args)
        if args.all and not args.yes:
            print_results(args, ((staged, "would change", f"would be {action.result}") for staged in chosen))
            print_note(f"{len(chosen)} would be changed; add --yes to do it")
            return DONE
        with gate.hold():
            found = act_on_jobs(session, action, chosen, reason, gate.check if args.all else _go_on, topic=args.topic)
        if not args.all and not found.changed:
            raise ChangedUnderneath(f"the job {chosen[0].job.id} changed underneath; nothing was done")
        skipped = "skipped: it changed underneath"
        done = {True: ("changed", action.result), False: (skipped, skipped)}
        print_results(args, ((staged, *done[found.done[staged.job.id]]) for staged in chosen))
        print_note(f"{found.changed} changed, {found.skipped} skipped; audit row {found.audit[:32]}")
    return CHANGED if found.skipped else DONE


def _go_on() -> None:
    """One job is changed or not: a signal waits for that."""


def choose_jobs(session: Session, args: argparse.Namespace) -> list[StagedJob]:
    """The jobs of a command, in the application's namespace: dead letters, or with --waiting those that wait."""
    if not 1 <= args.cap <= PAGE_ROWS:
        raise UsageError(f"--cap {args.cap}: give 1 to {PAGE_ROWS}")
    found = iter_jobs(session, session.namespace, dead=not args.waiting, topic=args.topic if args.all else None)
    jobs = (job for job in found if job.dead != args.waiting)
    if args.all:
        return list(islice(jobs, args.cap))
    low = args.id.lower()
    if not MIN_ID_DIGITS <= len(low) <= JOB_DIGITS:
        raise UsageError(
            f"{args.id!r}: give {MIN_ID_DIGITS} to {JOB_DIGITS} digits of an id, as `outbox list` shows it"
        )
    named = [job for job in jobs if job.job.id.startswith(low)]
    if len(named) > 1:
        ids = ", ".join(job.job.id for job in named[:10])
        raise UsageError(f"{args.id!r} names {len(named)} jobs: {ids}; give more digits of one")
    if not named:
        raise no_job_error(session, low, waiting=args.waiting)
    return named


def no_job_error(session: Session, digits: str, *, waiting: bool) -> NotFound:
    """There is no such job in the state that was asked for. Says so if there is one in the other state."""
    others = iter_jobs(session, session.namespace, dead=waiting, topic=None)
    other = next((job for job in others if job.dead == waiting and job.job.id.startswith(digits)), None)
    what, which = ("waiting job", ()) if waiting else ("dead job", ("--dead",))
    told = f"no {what} {digits!r} in namespace {session.namespace!r}"
    if other is None:
        listing = build_command("outbox", "list", *which, namespace=session.namespace)
        return NotFound(told, f"see `{listing}`; --namespace names another application")
    if waiting:
        return NotFound(f"{told}: it is a dead letter", "leave --waiting out")
    due = summarize_job(other)["due"]
    return NotFound(f"{told}: it waits, and its next delivery is due at {due}", "give --waiting for a job that waits")


def run_assign(args: argparse.Namespace) -> int:
    if not args.namespace:
        raise UsageError("--namespace '': give the name of the application that gets the jobs")
    with open_session(args) as session:
        check_outbox(session)
        entry = make_entry(args, "outbox assign")
        if not args.yes:
            return print_assignable(args, session.execute(Namespaces()))
        with gate.hold(), session.act(entry) as audit:
            done = session.execute(AssignJobs(args.namespace))
            audit.result = {"changed": done}
    if args.json:
        print_json({"namespace": args.namespace, "would_change": 0, "changed": done, "audit": audit.id})
    else:
        print(f"{count_jobs(done)} now belong{'s' if done == 1 else ''} to {args.namespace!r}")
    return DONE


def count_jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number} jobs"


def print_assignable(args: argparse.Namespace, found: NamespacesReply) -> int:
    """How many jobs would go to the application. A mistyped one would have no worker."""
    if args.json:
        print_json({"namespace": args.namespace, "would_change": found.unnamed, "changed": 0, "audit": None})
    else:
        print(f"{count_jobs(found.unnamed)} would belong to {args.namespace!r}; add --yes to do it")
    if found.unnamed and args.namespace not in found.names:
        known = ", ".join(found.names) or "none"
        print_note(f"no record or job is of {args.namespace!r} yet: check the spelling; there are {known}")
    return DONE


def format_row(staged: StagedJob) -> tuple[str, ...]:
    job = summarize_job(staged)
    order = f" (order {staged.job.order})" if staged.job.order else ""
    topic = shorten(f"{staged.job.topic}{order}", 60)
    count = "1 delivery" if staged.attempts == 1 else f"{staged.attempts} deliveries"
    return (
        job["id"],
        job["state"],
        staged.namespace or "(none)",
        topic,
        count,
        f"{'died' if staged.dead else 'due'} {job['due']}",
        shorten(staged.error, 200),
    )


def show_payload(staged: StagedJob) -> str:
    """The payload as text. One that is encrypted is not shown as bytes."""
    if staged.unreadable:
        return f"(unreadable: {staged.unreadable})"
    if staged.job.payload.startswith(MAGIC):
        return ENCRYPTED
    return staged.job.payload.decode("utf-8", "backslashreplace")


def print_results(args: argparse.Namespace, results: Iterable[tuple[StagedJob, str, str]]) -> None:
    """Each job with its result for programs, which is the same for every action, and with words for people."""
    if args.json:
        for staged, result, _ in results:
            print_json({"id": staged.job.id, "topic": staged.job.topic, "result": result})
    else:
        print_table(RESULT_COLUMNS, ((staged.job.id, staged.job.topic, words) for staged, _, words in results))
