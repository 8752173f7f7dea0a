"""Namespaces are walls (rule 15, I34): two applications in one store, and no worker touches what is the other's."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.cli.exits import NOT_FOUND as EXIT_NOT_FOUND
from retrysafe.cli.exits import USAGE as EXIT_USAGE
from retrysafe.cli.exits import NotFound
from retrysafe.cli.main import main
from retrysafe.core.jobs import Job, ListJobs, Namespaces, Stage
from retrysafe.core.ops import List, Stats
from retrysafe.core.states import State
from retrysafe.operations import stage
from retrysafe.testing.builders import claim, complete
from retrysafe.worker import Worker
from retrysafe.worker.completer import CompleterCounts
from retrysafe.worker.enqueuer import Enqueuer, EnqueuerCounts
from tests.opening import store_url


class Shop:
    """An application: its operation stages a receipt, and both are noted with whose hands they went through."""

    def __init__(self, url: str, name: str, tx: Any = None) -> None:
        self.name = name
        self.safe = RetrySafe(url, namespace=name, tx=tx)
        self.did: list[str] = []
        policy = Policy(failures="release", start="worker")
        self.order = self.safe.operation("order", policy=policy)

        @self.order.local
        def enter(tx: Any, number: str) -> str:
            stage(tx, "receipt", {"number": number}, order="all")
            return number

        @self.order.body
        def place(number: str) -> Answer:
            self.did.append(number)
            enter(number)
            return Answer(201, {"by": name})

        self.safe.publish("receipt")(lambda job: self.did.append(f"receipt {json.loads(job.payload)['number']}"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shared.db"


@pytest.fixture
def shops(path: Path) -> Iterator[list[Shop]]:
    made = [Shop(f"sqlite:///{path}", name, str(path)) for name in ("shop-a", "shop-b")]
    made[0].safe.migrate()
    yield made
    for shop in made:
        shop.safe.close()


def test_a_worker_runs_and_sends_only_what_is_its_own(shops: list[Shop]) -> None:
    """Both have an operation `order@1` and a topic `receipt`: one's worker charged the other's order."""
    a, b = shops
    for number in range(3):
        a.order(f"a-{number}", key=f"k{number}")
        b.order(f"b-{number}", key=f"k{number}")
    assert Worker(a.safe).run_once().counts["completer"] == CompleterCounts(3, 0, 0)
    assert all(each.removeprefix("receipt ").startswith("a-") for each in a.did)
    assert b.did == []
    assert [
        len(a.safe.execute(List(namespace=name, state=State.COMPLETED)).records) for name in ("shop-a", "shop-b")
    ] == [
        3,
        0,
    ]
    assert Worker(b.safe).run_once().counts["enqueuer"] == EnqueuerCounts(3, 0, 0)
    assert sorted(b.did) == [f"b-{number}" for number in range(3)] + [f"receipt b-{number}" for number in range(3)]
    assert len(a.did) == 6


@pytest.mark.parametrize(
    "store", [pytest.param(name, marks=pytest.mark.store(name)) for name in ("sqlite", "redis", "postgres", "mongodb")]
)
def test_a_worker_sweeps_and_reaps_only_what_is_its_own(
    request: pytest.FixtureRequest, tmp_path: Path, store: str
) -> None:
    url = store_url(request, tmp_path, store)
    with RetrySafe(url, namespace="shop-a") as a:
        a.migrate()
        for namespace in ("shop-a", "observed:shop-a", "shop-b", "observed:shop-b"):
            a.execute(claim("lost", namespace=namespace, lease=1, on_lapse="uncertain", now=0))
            a.execute(complete(a.execute(claim("old", namespace=namespace, retention=1, now=0)), now=0))
        done = Worker(a).run_once()
        assert (done.counts["sweeper"], done.counts["reaper"]) == (2, 2)
        left = {
            name: a.execute(Stats(namespace=name))
            for name in ("shop-a", "observed:shop-a", "shop-b", "observed:shop-b")
        }
        assert {name: (each.lapsed, each.uncertain, each.completed) for name, each in left.items()} == {
            "shop-a": (0, 1, 0),
            "observed:shop-a": (0, 1, 0),
            "shop-b": (1, 0, 1),
            "observed:shop-b": (1, 0, 1),
        }


# What the release before staged ------------------------------------------------------------------


def staged_by_the_release_before(path: Path, number: int, order: str = "") -> None:
    """Its own statement: it knows nothing of namespaces, nor of deliveries."""
    db = sqlite3.connect(path)
    db.execute(
        "INSERT INTO retrysafe_outbox (id, topic, payload, order_key, created, attempts, due, token, dead, error) "
        "VALUES (?, 'receipt', ?, ?, 0, 0, 0, x'', 0, '')",
        [f"{number:032x}", json.dumps({"number": str(number)}).encode(), order],
    )
    db.commit()
    db.close()


def taken_by_the_release_before(path: Path, times: int) -> None:
    """A worker without a publisher took and gave back what it could not send; it counted that."""
    db = sqlite3.connect(path)
    db.execute("UPDATE retrysafe_outbox SET attempts = attempts + ?, token = x''", [times])
    db.commit()
    db.close()


def test_a_job_without_a_namespace_goes_on_where_there_is_one_application(shops: list[Shop], path: Path) -> None:
    a, _ = shops
    a.order("a-0", key="k")
    Worker(a.safe).run_once()
    staged_by_the_release_before(path, 7, order="all")
    a.safe.execute(Stage((Job("f" * 32, "receipt", b'{"number": "8"}', "all"),), namespace="shop-a"))
    taken_by_the_release_before(path, 100)
    assert Enqueuer(a.safe, a.safe.publishers).run_once() == EnqueuerCounts(2, 0, 0)
    assert a.did[-2:] == ["receipt 7", "receipt 8"], "in their order, and its takings were no deliveries"


def test_otherwise_it_waits_and_the_doctor_says_how_to_assign_it(
    shops: list[Shop], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = shops
    a.order("a-0", key="k")
    b.order("b-0", key="k")
    staged_by_the_release_before(path, 7)
    for shop in shops:
        assert Enqueuer(shop.safe, shop.safe.publishers).run_once() == EnqueuerCounts(0, 0, 0)
    url = f"sqlite:///{path}"
    main(["doctor", url])
    told = capsys.readouterr().out
    assert "1 staged job belongs to no application" in told
    assert "retrysafe outbox assign" in told
    assert "shop-a" in told
    words = ["outbox", "assign", url, "--namespace", "shop-b", "--because", "all of them are ours"]
    assert main(words) == 0
    assert capsys.readouterr().out == "1 job would belong to 'shop-b'; add --yes to do it\n"
    assert a.safe.execute(Namespaces()).unnamed == 1, "many jobs are changed at once: a dry run without --yes"
    assert main([*words[:4], "shop-c", *words[5:]]) == 0
    assert "check the spelling; there are shop-a, shop-b" in capsys.readouterr().err
    assert main(["audit", url, "--namespace", "shop-b", "--json"]) == 0
    assert capsys.readouterr().out == "", "nothing was done, so there is no row"
    assert main([*words, "--yes"]) == 0
    assert a.safe.execute(Namespaces()).unnamed == 0
    assert Enqueuer(a.safe, a.safe.publishers).run_once() == EnqueuerCounts(0, 0, 0)
    assert Enqueuer(b.safe, b.safe.publishers).run_once() == EnqueuerCounts(1, 0, 0)


# The command line --------------------------------------------------------------------------------


def test_tools_change_only_the_namespace_they_are_told(
    shops: list[Shop], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, _ = shops
    url = f"sqlite:///{path}"
    for shop in shops:
        shop.safe.execute(Stage((Job(f"{len(shop.name):031x}{shop.name[-1]}", "t", b"{}"),), namespace=shop.name))
        fails = Enqueuer(shop.safe, {"t": lambda job: 1 / 0}, max_attempts=1)
        assert fails.run_once() == EnqueuerCounts(0, 0, 1)
    assert main(["outbox", "list", url, "--dead", "--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["namespace"], each["error"], each["deliveries"]) for each in listed] == [
        ("shop-a", "ZeroDivisionError: division by zero", 1),
        ("shop-b", "ZeroDivisionError: division by zero", 1),
    ]
    ids = [each["id"] for each in listed]
    retry = ["outbox", "retry", url, "--because", "the receiver is up again"]
    assert main([*retry, ids[0], "--namespace", "shop-b"]) == EXIT_NOT_FOUND
    assert main([*retry, ids[0], "--namespace", "shop-a"]) == 0
    assert [each.dead for each in a.safe.execute(ListJobs())] == [False, True]
    assert main([*retry, ids[1]]) == EXIT_NOT_FOUND, "the namespace 'default'"
    assert [each.dead for each in a.safe.execute(ListJobs())] == [False, True]


def test_a_dead_job_is_revived_by_the_first_digits_of_its_id(
    shops: list[Shop], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop, url = shops[0], f"sqlite:///{path}"
    ids = [f"aaaaaaaa{number}{0:023x}" for number in (1, 2)] + [f"bbbbbbbb{0:024x}"]
    shop.safe.execute(Stage(tuple(Job(each, "t", b"{}") for each in ids), namespace=shop.name))
    Enqueuer(shop.safe, {"t": lambda job: 1 / 0}, max_attempts=1).run_once()
    revive = ["outbox", "revive", url, "--namespace", shop.name, "--because", "the receiver is up again"]
    assert main([*revive, "aaaaaaaa"]) == EXIT_USAGE
    told = capsys.readouterr().err
    assert all(each in told for each in ids[:2]), "it may be either"
    assert main([*revive, "bbbbbbb"]) == EXIT_USAGE, "fewer than eight digits"
    assert main([*revive, "BBBBBBBB"]) == 0
    assert main([*revive, "aaaaaaaa2"]) == 0
    assert [each.job.id for each in shop.safe.execute(ListJobs(dead=True))] == [ids[0]]


def test_operations_shows_those_of_its_application(
    shops: list[Shop], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from retrysafe.cli import operations

    a, b = shops
    a.order("a-0", key="same")
    b.order("b-0", key="same")
    assert operations.find_run(a.safe, "same").namespace == "shop-a"
    theirs = operations.find_run(b.safe, "same").id.hex()
    assert [each.namespace for each in operations.RunSearch(a.safe).iter_runs(None)] == ["shop-a"]
    with pytest.raises(NotFound, match="names 0 runs"):
        operations.find_run(a.safe, theirs)
