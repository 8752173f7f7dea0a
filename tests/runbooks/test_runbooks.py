"""Each runbook, followed: a state is brought about, the page's own commands are run, and the alert's figure falls."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from retrysafe import RetrySafe
from retrysafe.core.jobs import Job, Stage
from retrysafe.core.ops import Claim, Complete, List, Release
from retrysafe.core.records import Answer
from retrysafe.core.states import State
from retrysafe.engine.exposition import format_metrics
from retrysafe.errors import FingerprintMismatch, InProgress, LeaseLost, StoreError
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.builders import claim
from retrysafe.testing.faults import Fault, FaultStore, Script
from retrysafe.worker import Worker
from tests.runbooks.pages import FOLDER, ROOT, SECTIONS, Runbook
from tests.waiting import until

RULES = yaml.safe_load((ROOT / "monitoring" / "alerts.yml").read_text())["groups"][0]["rules"]
APP = "tests.runbooks.app:safe"
LONG_AGO = 1_700_000_000


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

    def run(self, code: str, check: bool = True) -> None:
        """Run a line of Python with the application."""
        done = subprocess.run(
            [sys.executable, "-c", f"from tests.runbooks.app import *\n{code}"],
            cwd=self.folder,
            env=os.environ | {"RETRYSAFE_URL": self.url, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stderr

    def gauge(self, name: str, *labels: str) -> float:
        """What a worker's next round would show."""
        with self.open() as safe:
            worker = Worker(safe)
            (service,) = [each for each in worker.services if each.name == "gauges"]
            worker.run_service(service)
            return read(safe, name, *labels)

    def find(self, **query: object) -> str:
        """The id of the only record."""
        with self.open() as safe:
            (record,) = safe.execute(List(**query)).records  # type: ignore[arg-type]
            return record.id.hex()


def read(safe: RetrySafe, name: str, *labels: str) -> float:
    return sum(
        sample.value
        for family in text_string_to_metric_families(format_metrics(safe.figures.snapshot()))
        for sample in family.samples
        if sample.name == name and set(labels) <= set(sample.labels.values())
    )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def serve() -> Iterator[Callable[[RetrySafe], str]]:
    """Serves the figures of an object, as an application does."""
    servers = []

    def start(safe: RetrySafe) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(format_metrics(safe.figures.snapshot()).encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}/metrics"

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def follow(name: str, place: Place, **variables: str) -> str:
    """Follow a page from *Look* to *Check*. Returns what *Look* printed."""
    page = Runbook(name)
    known = {"RETRYSAFE_URL": place.url, "RETRYSAFE_APP": APP, **variables}
    seen = page.follow("Look", place.folder, known)
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


def test_uncertain_keys(place: Place) -> None:
    place.down.touch()
    place.run("pay('k1')", check=False)
    place.down.unlink()
    until(lambda: place.gauge("retrysafe_records", "uncertain") == 1, 60, "the end of the lease")
    assert place.gauge("retrysafe_uncertain_age_max_seconds") > 0
    with place.open() as safe:
        Worker(safe).run_once()  # the sweeper marks it
    found = place.find(state=State.UNCERTAIN)
    assert found[:8] in follow("uncertain-keys", place, ID=found)
    assert place.gauge("retrysafe_records", "uncertain") == 0
    assert place.gauge("retrysafe_uncertain_age_max_seconds") == 0
    place.run("assert pay('k1') == (200, b'{\"paid\": true}\\n')")  # the retry gets the answer that the person gave


def test_undo_failed(place: Place) -> None:
    place.down.touch()
    place.run(
        "try:\n    trip(900, key='t1')\nexcept Exception: pass\n"
        "assert safe.figures.counts['runs', ('trip', 'undo_failed')] == 1"
    )
    assert place.gauge("retrysafe_records", "uncertain") == 1
    place.down.unlink()
    seen = follow("undo-failed", place, ID=place.find(state=State.UNCERTAIN))
    assert "the bank is down" in seen
    assert place.gauge("retrysafe_records", "uncertain") == 0


def test_claims_lapsed(place: Place) -> None:
    """A process was killed inside an operation, an hour ago."""
    place.run(
        "import time\nfrom dataclasses import replace\ntask, claim = trip.prepare((50,), {}, 't1')\n"
        "safe.execute(replace(claim, on_lapse='resume', now=time.time_ns() // 1000 - 3600 * 1_000_000))"
    )
    assert place.gauge("retrysafe_records", "lapsed") == 1
    found = place.find(lapsed=True)
    assert found[:8] in follow("claims-lapsed", place, ID=found)
    assert place.gauge("retrysafe_records", "lapsed") == 0
    place.run("assert trip(50, key='t1') == Answer(201, {'charged': 50})")


def stage(place: Place) -> str:
    job = Job("ab" * 16, "mail", b"{}")
    with place.open() as safe:
        safe.execute(Stage((job,), namespace="default"))
    return job.id


def test_outbox_stalled(place: Place) -> None:
    job = stage(place)
    assert place.gauge("retrysafe_outbox_messages", "pending") == 1
    assert place.gauge("retrysafe_outbox_age_max_seconds") > 0
    assert job[:8] in follow("outbox-stalled", place)
    assert place.gauge("retrysafe_outbox_messages", "pending") == 0
    assert place.gauge("retrysafe_outbox_age_max_seconds") == 0


def test_dead_letters(place: Place) -> None:
    job = stage(place)
    place.down.touch()
    place.run("from retrysafe.worker import Worker\nWorker(safe, job_attempts=1).run_once()")
    place.down.unlink()
    assert place.gauge("retrysafe_outbox_messages", "dead") == 1
    assert "the mail server is down" in follow("dead-letters", place, ID=job)
    assert place.gauge("retrysafe_outbox_messages", "dead") == 0
    assert place.gauge("retrysafe_outbox_messages", "pending") == 0


def test_leases_lost(place: Place) -> None:
    """The owner is late: another attempt has the key by then, and dies."""
    with place.open() as safe:

        @safe.once("slow:{order}")
        def slow(order: int) -> int:
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
        assert read(safe, "retrysafe_lease_renewals_total", "lost") == 1
        Worker(safe).run_once()
    assert place.gauge("retrysafe_records", "uncertain") == 1
    follow("leases-lost", place, ID=place.find(state=State.UNCERTAIN))
    assert place.gauge("retrysafe_records", "uncertain") == 0


Serve = Callable[[RetrySafe], str]


def ratio(safe: RetrySafe, outcome: str, before: tuple[float, float]) -> tuple[float, tuple[float, float]]:
    """The share of an outcome among the claims since `before`, and the counts now."""
    now = (read(safe, "retrysafe_claims_total", outcome), read(safe, "retrysafe_claims_total"))
    return (now[0] - before[0]) / (now[1] - before[1]), now


def test_mismatch_ratio(place: Place, serve: Serve) -> None:
    with place.open() as safe:

        @safe.once("pay:{order}")
        def pay(order: int, cents: int) -> int:
            return cents

        pay(1, 100)
        with pytest.raises(FingerprintMismatch):
            pay(1, 200)
        share, then = ratio(safe, "mismatched", (0, 0))
        assert share > 0.01
        assert 'outcome="mismatched"' in follow("mismatch-ratio", place, METRICS=serve(safe))
        pay(2, 200)  # the client sends a new key
        assert ratio(safe, "mismatched", then)[0] == 0


def test_busy_ratio(place: Place, serve: Serve) -> None:
    with place.open() as safe:

        @safe.once("pay:{order}")
        def pay(order: int) -> int:
            with suppress(InProgress):
                pay(order)  # a hasty client
            return order

        pay(1)
        share, then = ratio(safe, "busy", (0, 0))
        assert share > 0.1
        seen = follow("busy-ratio", place, METRICS=serve(safe))
        assert 'outcome="busy"' in seen
        assert "retrysafe_execution_duration_seconds_count" in seen
        safe.once("pay:{order}")(place_order)(2)
        assert ratio(safe, "busy", then)[0] == 0


def place_order(order: int) -> int:
    return order


def test_store_slow(place: Place, serve: Serve) -> None:
    with place.open() as safe:
        safe.figures.observe_store(Complete, 0.9)
        assert slow_share(safe) == 1
        assert "retrysafe_store_operation_duration_seconds_sum" in follow("store-slow", place, METRICS=serve(safe))
        for order in range(9):
            safe.once("pay:{order}")(place_order)(order)
        assert slow_share(safe) < 0.5


def slow_share(safe: RetrySafe) -> float:
    name = "retrysafe_store_operation_duration_seconds"
    return 1 - read(safe, f"{name}_bucket", "0.5") / read(safe, f"{name}_count")


def test_store_errors(place: Place, serve: Serve) -> None:
    """The store is down for two operations, and comes back."""
    script = Script([Fault(1, "before", lasting=True)])
    with RetrySafe(FaultStore(MemoryStore(), script)) as safe:
        pay = safe.once("pay:{order}")(place_order)
        with pytest.raises(StoreError):
            pay(1)
        count = "retrysafe_store_operation_duration_seconds_count"
        assert read(safe, count) > 0
        assert read(safe, count, "") == 0, "nothing succeeded"
        seen = follow("store-errors", place, METRICS=serve(safe))
        assert 'error_type="StoreUn' in seen


def test_reaper_behind(place: Place) -> None:
    with place.open() as safe:
        held = safe.execute(claim("k1", namespace="default", retention=1, now=LONG_AGO)).record
        assert held is not None
        assert safe.execute(Complete(held.id, held.fence, Answer(200, b"x"), now=LONG_AGO * 1_000_000 + 1))
    assert place.gauge("retrysafe_reaper_lag_seconds") > 7200
    follow("reaper-behind", place)
    assert place.gauge("retrysafe_reaper_lag_seconds") == 0
    assert place.gauge("retrysafe_records", "expired") == 0


def test_worker_silent(place: Place) -> None:
    """Nobody answers at the worker's address. Then it is started, and its rounds grow."""
    from tests.servers.ports import free_port

    address = f"127.0.0.1:{free_port()}"
    page = Runbook("worker-silent")
    known = {"RETRYSAFE_URL": place.url, "RETRYSAFE_APP": APP, "WORKER": f"http://{address}"}
    page.follow("Look", place.folder, known)
    page.follow("Do", place.folder, known)
    worker = subprocess.Popen(
        [sys.executable, "-m", "retrysafe.cli.main", "worker", APP, "--health", address, "--json"],
        cwd=place.folder,
        env=os.environ | {"RETRYSAFE_URL": place.url, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        assert json.loads(worker.stdout.readline())["reaper"] == 0  # its first report: every service has done a round
        assert 'service="reaper",outcome="done"' in page.follow("Check", place.folder, known)
    finally:
        worker.terminate()
        worker.wait()
        worker.stdout.close()
