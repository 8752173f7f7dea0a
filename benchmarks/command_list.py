"""The commands of an operator that are measured, and the open work that they find in a store.

A command that changes something has a target of its own for each run, so that each run acts: `{n}` in its words is the
number of the run. `prepare` puts all targets into the store."""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from typing import Any, NamedTuple

from retrysafe.core.jobs import FailJob, Job, Stage, TakeJobs
from retrysafe.core.ops import Suspect
from retrysafe.core.times import SECOND_MICROS
from retrysafe.stores.base import Store
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import DAY, claim, complete

OPEN, TENANT = 100, "tenant-7"
BULK_ROWS = 2
"""So many records are the target of each run of a command on many."""
LONG_AGO_SECONDS = 2 * DAY
BECAUSE = ("--because", "a measurement")
MODULE = "benchmarks.apps.listed"
APP = f"{MODULE}:safe"
URL_SETTING = "RETRYSAFE_BENCH_URL"


class Command(NamedTuple):
    name: str
    words: tuple[str, ...]
    reads_all: bool = False
    by_id: bool = False
    """It reads every record where lists do not go by id."""
    acts: bool = False
    """Each run changes something, and exits with 0. Others may find nothing."""
    submits: bool = False
    """Before each run a run of an operation is submitted, which the command finds."""

    def reads_every_record(self, *, lists_by_id: bool) -> bool:
        return self.reads_all or (self.by_id and not lists_by_id)

    def build_words(self, url: str, run: int) -> list[str]:
        """The words of one run, which is numbered from 0."""
        words = [fill_in(word, run) for word in self.words]
        return words if {"--help", "--app"} & set(words) else [*words, "--url", url]


def fill_in(word: str, run: int) -> str:
    """The word of a run. `{retried}` and `{dropped}` become the id of a dead letter, `{id:NAME}` that of a run of an
    operation."""
    if word.startswith("{id:"):
        return operation_id(f"{word[4:-1]}-{run}")
    return word.format(n=run, retried=job_id("retried", run), dropped=job_id("dropped", run))


def operation_id(key: str) -> str:
    return claim(key, kind="operation", scope="greet").id.hex()


def job_id(what: str, number: int) -> str:
    return f"{number:024x}{what.encode().hex()[:8]}"


def list_commands() -> list[Command]:
    digits = claim("open-0", scope=TENANT).id.hex()[:16]
    one = ("open-{n}", "--scope", TENANT)
    return [
        Command("--help", ("--help",)),
        Command("stats", ("stats",)),
        Command("top --times 1", ("top", "--times", "1")),
        Command("tail --times 1", ("tail", "--times", "1")),
        Command("keys list --state uncertain", ("keys", "list", "--state", "uncertain")),
        Command("keys list --lapsed", ("keys", "list", "--lapsed")),
        Command("keys list", ("keys", "list")),
        Command("keys show KEY --scope", ("keys", "show", *one)),
        Command("keys why KEY --scope", ("keys", "why", *one)),
        Command("keys show by 16 digits", ("keys", "show", digits), by_id=True),
        Command("dead-letters", ("dead-letters",)),
        Command("outbox list --dead", ("outbox", "list", "--dead")),
        Command("outbox retry --all (dry run)", ("outbox", "retry", "--all", *BECAUSE)),
        Command("outbox assign (dry run)", ("outbox", "assign", "--namespace", "default", *BECAUSE)),
        Command("operations list", ("operations", "list", "--app", APP)),
        Command("operations show by its id", ("operations", "show", "{id:resumed}", "--id", "--app", APP)),
        Command("reap (dry run)", ("reap",)),
        Command("doctor", ("doctor",)),
        Command("migrate", ("migrate",)),
        Command("config", ("config",)),
        Command("keys resolve --all (dry run)", ("keys", "resolve", "--all", "--did-not-happen", *BECAUSE)),
        Command("keys resolve KEY --scope", ("keys", "resolve", *one, "--did-not-happen", *BECAUSE), acts=True),
        Command(
            f"keys resolve --all --yes --cap {BULK_ROWS}",
            ("keys", "resolve", "--all", "--target", "POST /bulk", "--happened", "--cap", str(BULK_ROWS), "--yes",
             *BECAUSE),
            acts=True,
        ),
        Command("keys release KEY --scope", ("keys", "release", "rerun-{n}", "--scope", TENANT, *BECAUSE), acts=True),
        Command("keys forget KEY --scope", ("keys", "forget", "done-{n}", "--scope", TENANT, *BECAUSE), acts=True),
        Command("outbox retry ID", ("outbox", "retry", "{retried}", *BECAUSE), acts=True),
        Command("outbox drop ID", ("outbox", "drop", "{dropped}", *BECAUSE), acts=True),
        *(
            Command(
                f"operations {verb} by its id",
                ("operations", verb, f"{{id:{done}}}", "--id", "--app", APP, *BECAUSE),
                acts=True,
            )
            for verb, done in (("resume", "resumed"), ("undo", "undone"), ("cancel", "cancelled"))
        ),
        Command(
            f"reap --yes --limit {BULK_ROWS}", ("reap", "--yes", "--limit", str(BULK_ROWS), *BECAUSE), acts=True
        ),
        Command("trigger crash", ("trigger", "crash", *BECAUSE), acts=True),
        Command("worker --once", ("worker", "--once", "--grace", "0", "--app", APP), acts=True, submits=True),
        Command("keys show KEY", ("keys", "show", "no-such-key"), reads_all=True),
        Command("operations show RUN", ("operations", "show", "no-such-run", "--app", APP), reads_all=True),
        Command(
            "operations list --state completed",
            ("operations", "list", "--state", "completed", "--app", APP),
            reads_all=True,
        ),
        Command("audit", ("audit",), by_id=True),
        Command("stats --count", ("stats", "--count"), reads_all=True),
        Command("keys export --scope", ("keys", "export", "--scope", TENANT), reads_all=True),
        Command("erase --scope (dry run)", ("erase", "--scope", TENANT, *BECAUSE), reads_all=True),
        Command("erase --scope --yes", ("erase", "--scope", TENANT, "--yes", *BECAUSE), reads_all=True),
    ]  # fmt: skip


def prepare(url: str, runs: int) -> str:
    """Put the same open work into the store: what is looked at, and a target for each run of what acts."""
    store = open_store(url)
    for number in range(max(OPEN, runs)):
        store.execute(claim(f"open-{number}", scope=TENANT, lease=0, now=None))
        store.execute(claim(f"alive-{number}", lease=3600, now=None))
        store.execute(claim(f"rerun-{number}", scope=TENANT, lease=0, on_lapse="rerun", now=None))
        finish(store, f"done-{number}")
    for number in range(BULK_ROWS * runs):
        found = store.execute(claim(f"bulk-{number}", target="POST /bulk", now=None)).record
        assert found is not None
        assert store.execute(Suspect(found.id, found.fence, "who knows", now=None))
        finish(store, f"expired-{number}", now=time.time() - LONG_AGO_SECONDS)
    if store.capabilities.outbox:
        stage_dead_letters(store, runs)
    store.close()
    submit_runs(url, [f"{done}-{number}" for number in range(runs) for done in ("resumed", "undone", "cancelled")])
    return url


def finish(store: Store, key: str, now: float | None = None) -> None:
    """A finished key, which is kept for a day."""
    assert store.execute(complete(store.execute(claim(key, scope=TENANT, retention=DAY, now=now)), now=now))


def stage_dead_letters(store: Store, runs: int) -> None:
    """A dead letter for each run of what retries one and of what drops one, and as many jobs that wait."""
    dead = [job_id(what, number) for number in range(runs) for what in ("retried", "dropped")]
    store.execute(Stage(tuple(Job(each, "receipts", b"{}") for each in dead), None, "default"))
    token = b"t" * 16
    while taken := store.execute(TakeJobs(len(dead), token, SECOND_MICROS, None, "default")):
        for each in taken:
            store.execute(FailJob(each.job.id, token, "no", 0, True))
    waiting = tuple(Job(job_id("waiting", number), "receipts", b"{}") for number in range(len(dead)))
    store.execute(Stage(waiting, None, "default"))


def submit_runs(url: str, keys: list[str]) -> None:
    """Submit runs of the application's operation, which wait for a worker."""
    module = load_app(url)
    for key in keys:
        module.greet.submit(key=key)
    module.safe.close()
    forget_app()


def load_app(url: str) -> Any:
    os.environ[URL_SETTING] = url
    forget_app()
    return import_module(MODULE)


def forget_app() -> None:
    """So that the next command imports the application again, as its process would. Closed by the command."""
    sys.modules.pop(MODULE, None)
