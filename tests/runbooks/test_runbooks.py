"""Each runbook, followed: a state is brought about, the page's own commands are run, and the alert's figure falls. The
alert itself is asked, too: with the figures that were exported before, during and after it (firing.py)."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from retrysafe import RetrySafe
from retrysafe.core.jobs import Job, Stage
from retrysafe.core.ops import Claim, Complete, List, Release
from retrysafe.core.records import Answer
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.exposition import format_metrics
from retrysafe.errors import LeaseLost
from retrysafe.testing.builders import claim
from retrysafe.worker import Worker
from tests.runbooks.firing import Phase, check_alert
from tests.runbooks.pages import FOLDER, ROOT, SECTIONS, Runbook
from tests.waiting import until

RULES = yaml.safe_load((ROOT / "monitoring" / "alerts.yml").read_text())["groups"][0]["rules"]
APP = "tests.runbooks.app:safe"
LONG_AGO = 1_700_000_000
SHOW = (
    "from retrysafe.engine.exposition import format_metrics\nprint(format_metrics(safe.figures.snapshot()), end='')\n"
)
"""Prints the figures of the application's process."""


class Place:
    """An application's folder: its store, whether the other system is down, and the figures of its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'app.db'}"
        self.down = folder / "down"
        with self.open() as safe:
            safe.migrate()

    def open(self) -> RetrySafe:
        return RetrySafe(self.url)

    def run(self, code: str, check: bool = True) -> str:
        """Run a line of Python with the application. Returns what it printed."""
        done = subprocess.run(
            [sys.executable, "-c", f"from tests.runbooks.app import *\n{code}"],
            cwd=self.folder,
            env=os.environ | {"RETRYSAFE_URL": self.url, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def scrape(self) -> str:
        """What a worker's next round would show."""
        with self.open() as safe:
            worker = Worker(safe)
            (service,) = [each for each in worker.services if each.name == "gauges"]
            worker.run_service(service)
            return format_metrics(safe.figures.snapshot())

    def gauge(self, name: str, *labels: str) -> float:
        return total(parse(self.scrape()), name, *labels)

    def find(self, **query: object) -> str:
        """The id of the only record."""
        with self.open() as safe:
            (record,) = safe.execute(List(**query)).records  # type: ignore[arg-type]
            return record.id.hex()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


Ask = Callable[..., None]


@pytest.fixture
def ask(promtool: list[str], tmp_path: Path) -> Ask:
    """`ask("RetrySafeUncertainKeys", Phase(…), …)`: does the alert fire when it should, and only then?"""
    return partial(check_alert, promtool, tmp_path)


def follow(name: str, place: Place, before_do: Callable[[], None] = lambda: None, **variables: str) -> str:
    """Follow a page from *Look* to *Check*. Returns what *Look* printed. `before_do` is what a page asks for that no
    command of ours can do: a deployment, room on a disk."""
    page = Runbook(name)
    known = {"RETRYSAFE_URL": place.url, "RETRYSAFE_APP": APP, **variables}
    seen = page.follow("Look", place.folder, known)
    before_do()
    page.follow("Do", place.folder, known)
    page.follow("Check", place.folder, known)
    return seen


# The pages as such -----------------------------------------------------------------------------------


def test_each_alert_has_a_page_and_each_page_an_alert() -> None:
    pages = {path.stem for path in FOLDER.glob("*.md")} - {"index"}
    linked = {rule["alert"]: rule["annotations"]["runbook_url"].rstrip("/").rpartition("/")[2] for rule in RULES}
    assert set(linked.values()) == pages
    for alert, name in linked.items():
        assert Runbook(name).alert == alert


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index"))
def test_each_page_has_the_six_parts_and_is_followed_by_a_test(name: str) -> None:
    assert tuple(Runbook(name).sections) == SECTIONS
    assert f"def test_{name.replace('-', '_')}(" in Path(__file__).read_text()


def test_each_alert_is_complete_and_uses_instruments_that_exist() -> None:
    from retrysafe.engine.instruments import INSTRUMENTS

    names = {instrument.prometheus_name for instrument in INSTRUMENTS}
    for rule in RULES:
        assert re.fullmatch(r"RetrySafe[A-Z]\w+", rule["alert"])
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        for used in re.findall(r"\bretrysafe_\w+", rule["expr"]):
            assert re.sub(r"_(bucket|count|sum)$", "", used) in names, f"{rule['alert']} asks for {used}"


# Each page -------------------------------------------------------------------------------------------


def test_uncertain_keys(place: Place, ask: Ask) -> None:
    quiet = place.scrape()
    place.down.touch()
    place.run("pay('k1')", check=False)
    place.down.unlink()
    until(lambda: place.gauge("retrysafe_records", "uncertain") == 1, 60, "the end of the lease")
    assert place.gauge("retrysafe_uncertain_age_max_seconds") > 0
    with place.open() as safe:
        Worker(safe).run_once()  # the sweeper marks it
    found, bad = place.find(state=State.UNCERTAIN), place.scrape()
    assert found[:8] in follow("uncertain-keys", place, ID=found)
    ask("RetrySafeUncertainKeys", Phase(quiet, 10, False), Phase(bad, 10, True), Phase(place.scrape(), 10, False))
    assert place.gauge("retrysafe_records", "uncertain") == 0
    assert place.gauge("retrysafe_uncertain_age_max_seconds") == 0
    place.run("assert pay('k1') == (200, b'{\"paid\": true}\\n')")  # the retry gets the answer that the person gave


def test_undo_failed(place: Place, ask: Ask) -> None:
    place.down.touch()
    quiet, bad = place.run(
        f"{SHOW}print('--')\ntry:\n    trip(900, key='t1')\nexcept Exception: pass\n{SHOW}"
        "assert safe.figures.counts['runs', ('trip', 'undo_failed')] == 1"
    ).split("--\n")
    assert place.gauge("retrysafe_records", "uncertain") == 1
    place.down.unlink()
    seen = follow("undo-failed", place, ID=place.find(state=State.UNCERTAIN))
    assert "the bank is down" in seen
    assert place.gauge("retrysafe_records", "uncertain") == 0
    after = place.run(f"assert trip(900, key='t1').status == 402\n{SHOW}")
    assert total(parse(after), "retrysafe_operation_runs_total", "undo_failed") == 0
    ask("RetrySafeUndoFailed", Phase(quiet, 10, False), Phase(bad, 10, True), Phase(bad, 70, False))


def test_claims_lapsed(place: Place, ask: Ask) -> None:
    """A process is killed inside an operation, and no worker runs."""
    quiet = place.scrape()
    killed = place.folder / "killed"
    killed.touch()
    place.run("trip(50, key='t1')", check=False)
    killed.unlink()
    until(lambda: place.gauge("retrysafe_records", "lapsed") == 1, 60, "the end of the lease")
    bad = place.scrape()
    found = place.find(lapsed=True)
    assert found[:8] in follow("claims-lapsed", place, ID=found)
    assert place.gauge("retrysafe_records", "lapsed") == 0
    ask("RetrySafeClaimsLapsed", Phase(quiet, 10, False), Phase(bad, 20, True), Phase(place.scrape(), 10, False))
    place.run("assert trip(50, key='t1') == Answer(201, {'charged': 50})")


def stage(place: Place, seconds_ago: int = 0) -> str:
    job = Job("ab" * 16, "mail", b"{}")
    with place.open() as safe:
        safe.execute(Stage((job,), time.time_ns() // 1000 - seconds_ago * SECOND_MICROS, "default"))
    return job.id


def test_outbox_stalled(place: Place, ask: Ask) -> None:
    """A job was committed an hour ago, and no worker runs."""
    quiet = place.scrape()
    job = stage(place, 3600)
    assert place.gauge("retrysafe_outbox_messages", "pending") == 1
    bad = place.scrape()
    assert job[:8] in follow("outbox-stalled", place)
    assert place.gauge("retrysafe_outbox_messages", "pending") == 0
    assert place.gauge("retrysafe_outbox_age_max_seconds") == 0
    ask("RetrySafeOutboxStalled", Phase(quiet, 10, False), Phase(bad, 10, True), Phase(place.scrape(), 10, False))


def test_dead_letters(place: Place, ask: Ask) -> None:
    quiet, job = place.scrape(), stage(place)
    place.down.touch()
    place.run("from retrysafe.worker import Worker\nWorker(safe, job_attempts=1).run_once()")
    place.down.unlink()
    assert place.gauge("retrysafe_outbox_messages", "dead") == 1
    bad = place.scrape()
    assert "the mail server is down" in follow("dead-letters", place, ID=job)
    assert place.gauge("retrysafe_outbox_messages", "dead") == 0
    assert place.gauge("retrysafe_outbox_messages", "pending") == 0
    ask("RetrySafeDeadLetters", Phase(quiet, 10, False), Phase(bad, 10, True), Phase(place.scrape(), 10, False))


def test_leases_lost(place: Place, ask: Ask) -> None:
    """The owner is late: another attempt has the key by then, and dies."""
    with place.open() as safe:
        quiet = format_metrics(safe.figures.snapshot())

        @safe.once("slow:{order}")
        def slow(order: int) -> int:
            if order > 1:
                return order
            (record,) = safe.execute(List(state=State.CLAIMED)).records
            safe.execute(Release(record.id, record.fence))
            safe.execute(
                Claim(
                    *(record.id, record.namespace, record.kind, record.scope, record.key, record.target),
                    *(record.fingerprint, b"t" * 16, b"r" * 16, 0, record.retention, "uncertain"),
                )
            )
            return order

        with pytest.raises(LeaseLost):
            slow(1)
        bad = format_metrics(safe.figures.snapshot())
        assert total(parse(bad), "retrysafe_lease_renewals_total", "lost") == 1
        Worker(safe).run_once()
        assert place.gauge("retrysafe_records", "uncertain") == 1
        follow("leases-lost", place, ID=place.find(state=State.UNCERTAIN))
        assert place.gauge("retrysafe_records", "uncertain") == 0
        assert slow(2) == 2, "the process works on, and loses no lease"
        after = format_metrics(safe.figures.snapshot())
    ask("RetrySafeLeasesLost", Phase(quiet, 10, False), Phase(bad, 10, True), Phase(after, 30, False))


class Api:
    """The application as a server, in a process of its own."""

    def __init__(self, place: Place) -> None:
        from tests.servers.ports import free_port

        self._place, self._port = place, free_port()
        self._process: subprocess.Popen[str] | None = None
        self.address = f"http://127.0.0.1:{self._port}/pay"
        self.metrics = f"http://127.0.0.1:{self._port}/metrics"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, busy: str = "conflict") -> None:
        self._process = run_beside(self._place, "tests.runbooks.serving", str(self._port), busy)

    def stop(self) -> None:
        if self._process is not None:
            end(self._process)
            self._process = None

    def trigger(self, what: str, *more: str) -> None:
        """What brings the state about."""
        command = [sys.executable, "-m", "retrysafe", "trigger", what, self.address, *more]
        subprocess.run(command, check=True, cwd=self._place.folder, capture_output=True)

    def pay(self) -> int:
        """One request of a client that does everything right. Returns its status."""
        headers = {"idempotency-key": f'"{uuid4()}"', "content-type": "application/json"}
        try:
            with urlopen(Request(self.address, b"{}", headers), timeout=60) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code

    def scrape(self) -> str:
        with urlopen(self.metrics, timeout=60) as answer:
            return str(answer.read().decode())

    def read(self) -> Samples:
        return parse(self.scrape())


Samples = dict[tuple[str, frozenset[str]], float]
"""By name and the values of the labels."""


def parse(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(samples: Samples, name: str, *labels: str) -> float:
    return sum(value for (found, values), value in samples.items() if found == name and set(labels) <= values)


def share(after: Samples, before: Samples, name: str, *labels: str) -> float:
    """The part of what was counted between two looks that has these labels: what the alert divides."""
    return (total(after, name, *labels) - total(before, name, *labels)) / (total(after, name) - total(before, name))


def run_beside(place: Place, module: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a program beside the test; it says a word when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=place.folder,
        env=os.environ | {"RETRYSAFE_URL": place.url, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline(), f"{module} did not start"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.fixture
def api(place: Place) -> Iterator[Api]:
    api = Api(place)
    yield api
    api.stop()


CLAIMS = "retrysafe_claims_total"
CALLS = "retrysafe_store_operation_duration_seconds"


def test_mismatch_ratio(place: Place, api: Api, ask: Ask) -> None:
    api.start()
    assert api.pay() == 201
    quiet = api.scrape()
    api.trigger("mismatch")
    bad = api.scrape()
    before = parse(bad)
    assert share(before, {}, CLAIMS, "mismatched") > 0.01
    assert 'outcome="mismatched"' in follow("mismatch-ratio", place, METRICS=api.metrics, API=api.address)
    after = api.read()
    assert total(after, CLAIMS, "replayed") > 0, "the page's own requests keep to one key and one body"
    assert share(after, before, CLAIMS, "mismatched") == 0
    ask("RetrySafeMismatchRatio", Phase(quiet, 30, False), Phase(bad, 40, True), Phase(api.scrape(), 40, False))


def test_busy_ratio(place: Place, api: Api, ask: Ask) -> None:
    api.start()
    assert api.pay() == 201
    quiet = api.scrape()
    (place.folder / "slow").touch()
    api.trigger("retry-storm", "--times", "5", "--at-once", "5")
    bad = api.scrape()
    assert share(parse(bad), parse(quiet), CLAIMS, "busy") > 0.1

    def deploy() -> None:
        """What the page asks for: a policy that lets the second request wait."""
        api.stop()
        api.start("wait")

    seen = follow("busy-ratio", place, before_do=deploy, METRICS=api.metrics, API=api.address)
    assert 'outcome="busy"' in seen
    assert "retrysafe_execution_duration_seconds_count" in seen
    after = api.read()
    assert total(after, CLAIMS, "replayed") > 1, "the page's storm met the work, and waited for its answer"
    assert share(after, {}, CLAIMS, "busy") == 0
    ask("RetrySafeBusyRatio", Phase(quiet, 30, False), Phase(bad, 40, True))
    ask("RetrySafeBusyRatio", Phase(api.scrape(), 40, False))  # of the new process, whose counts begin at zero


def test_store_slow(place: Place, api: Api, ask: Ask) -> None:
    """A report holds the store's lock for longer than half a second, again and again."""
    api.start()
    assert api.pay() == 201
    quiet = api.scrape()
    holding = run_beside(place, "tests.runbooks.holding", place.url.removeprefix("sqlite:///"))
    try:
        until(lambda: api.pay() == 201 and slow_share(api.read(), {}) > 0.01, 120, "a slow operation")
        bad = api.scrape()
        before = parse(bad)
        seen = follow("store-slow", place, METRICS=api.metrics, PID=str(holding.pid))
        assert f"{CALLS}_sum" in seen
        assert holding.wait() != 0, "the page's command ended it"
    finally:
        end(holding)
    was = slow_share(before, {})
    until(lambda: api.pay() == 201 and slow_share(api.read(), before) < was, 120, "operations that are fast again")
    again = api.scrape()
    until(lambda: api.pay() == 201 and slow_share(api.read(), parse(again)) == 0, 120, "a time without a slow one")
    # From one scrape to the next without a slow operation: what came before it is not laid out again.
    phases = Phase(quiet, 10, False), Phase(bad, 20, True), Phase(again, 1, True), Phase(api.scrape(), 30, False)
    ask("RetrySafeStoreSlow", *phases)


def slow_share(after: Samples, before: Samples) -> float:
    return 1 - share_of_fast(after, before)


def share_of_fast(after: Samples, before: Samples) -> float:
    fast = total(after, f"{CALLS}_bucket", "0.5") - total(before, f"{CALLS}_bucket", "0.5")
    return fast / (total(after, f"{CALLS}_count") - total(before, f"{CALLS}_count"))


def test_store_errors(place: Place, api: Api, ask: Ask) -> None:
    """The server's process may write no more: for it the disk is full."""
    api.start()
    assert api.pay() == 201
    quiet = api.scrape()
    healthy = parse(quiet)
    resource.prlimit(api.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    assert api.pay() == 503, "refused before it runs"
    bad = api.scrape()
    assert error_share(parse(bad), healthy) > 0.01

    def make_room() -> None:
        resource.prlimit(api.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    seen = follow("store-errors", place, before_do=make_room, METRICS=api.metrics)
    assert 'error_type="Store' in seen
    until(lambda: api.pay() == 201, 60, "the process finds the store again by itself")
    healed = api.scrape()
    assert api.pay() == 201
    assert error_share(api.read(), parse(healed)) == 0
    phases = Phase(quiet, 10, False), Phase(bad, 20, True), Phase(healed, 1, True), Phase(api.scrape(), 20, False)
    ask("RetrySafeStoreErrors", *phases)


def error_share(after: Samples, before: Samples) -> float:
    """What has no class of an error has an empty label."""
    return 1 - share(after, before, f"{CALLS}_count", "")


def test_reaper_behind(place: Place, ask: Ask) -> None:
    quiet = place.scrape()
    with place.open() as safe:
        held = safe.execute(claim("k1", namespace="default", retention=1, now=LONG_AGO)).record
        assert held is not None
        assert safe.execute(Complete(held.id, held.fence, Answer(200, b"x"), now=LONG_AGO * 1_000_000 + 1))
    assert place.gauge("retrysafe_reaper_lag_seconds") > 7200
    bad = place.scrape()
    follow("reaper-behind", place)
    assert place.gauge("retrysafe_reaper_lag_seconds") == 0
    assert place.gauge("retrysafe_records", "expired") == 0
    ask("RetrySafeReaperBehind", Phase(quiet, 10, False), Phase(bad, 40, True), Phase(place.scrape(), 10, False))


def test_worker_silent(place: Place, ask: Ask) -> None:
    """Nobody answers at the worker's address. The page's own command starts it, and its rounds grow."""
    from tests.servers.ports import free_port

    address = f"127.0.0.1:{free_port()}"
    page, pid = Runbook("worker-silent"), place.folder / "worker.pid"
    known = {"RETRYSAFE_URL": place.url, "RETRYSAFE_APP": APP, "WORKER": f"http://{address}"}
    page.follow("Look", place.folder, known)
    with place.open() as safe:
        silent = format_metrics(safe.figures.snapshot())  # of the application: it has no worker
    page.follow("Do", place.folder, known)
    try:
        until(lambda: scrape(address) != "", 120, "the worker's first report")
        begun = scrape(address)
        until(lambda: count_rounds(scrape(address)) > count_rounds(begun), 120, "another round")
        assert 'service="reaper",outcome="done"' in page.follow("Check", place.folder, known)
        done = scrape(address)
    finally:
        os.kill(int(pid.read_text()), signal.SIGTERM)
    ask("RetrySafeWorkerSilent", Phase(silent, 20, True), Phase(begun, 1, False), Phase(done, 20, False))


def scrape(address: str) -> str:
    """The figures of a worker that has done a round of each service; empty before that."""
    try:
        urlopen(f"http://{address}/", timeout=60).close()
        with urlopen(f"http://{address}/metrics", timeout=60) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def count_rounds(text: str) -> float:
    return total(parse(text), "retrysafe_worker_rounds_total", "done")
