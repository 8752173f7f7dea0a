"""With a key ring, a secret that goes through an operation is nowhere in what is stored (S11)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Answer, KeyRing
from retrysafe.core.jobs import FailJob, TakeJobs
from retrysafe.errors import NotFinished, OutcomeUnknown
from retrysafe.operations import Stop, Undo, stage
from retrysafe.worker.enqueuer import Enqueuer
from tests.operations.world import World, make_world

CANARY = "4242-planted-secret-4242"


@pytest.fixture(params=["sync", "async"])
def w(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = make_world(request, tmp_path, "sqlite", request.param, keyring=KeyRing({"k": bytes(range(32))}))
    yield world
    world.close()


def declare(w: World) -> Any:
    op = w.safe.operation("secret", max_attempts=1)

    def undo(card: str, result: str | None, *, key: str) -> None:
        raise ValueError(f"cannot undo {card} {result}")

    @w.foreign(op, undo=w.in_mode(undo), tries=1)
    def call(card: str, how: str, *, key: str) -> str:
        if how == "error":
            raise ConnectionError(f"provider said {card}")
        if how == "stop":
            raise Stop(402, {"card": card}, location=f"/cards/{card}")
        return f"token-{card}"

    @w.foreign(op, repeatable=False)
    def once(token: str, how: str, *, key: str) -> str:
        if how == "unknown":
            raise ConnectionError(f"no reply about {token}")
        return token

    @w.local(op)
    def finish(tx: Any, token: str) -> Answer:
        yield lambda: None
        stage(tx, "receipt", {"token": token})
        return Answer(200, {"token": token}, {"location": f"/tokens/{token}"})

    @w.body(op)
    def body(card: str, how: str) -> Answer:
        token = yield lambda: call(card, how)
        token = yield lambda: once(token, how)
        if how == "undo":
            raise Undo(409, {"card": card})
        return (yield lambda: finish(token))

    return op


def test_a_planted_secret_is_nowhere_in_the_file(w: World) -> None:
    op = declare(w)
    for how in ("finish", "error", "stop", "unknown", "undo"):
        with contextlib.suppress(NotFinished, OutcomeUnknown):
            w.run(op(CANARY, how, key=how))
        scan(w)
    answer = w.run(op(CANARY, "finish", key="finish"))
    assert answer.json() == {"token": f"token-{CANARY}"}
    assert CANARY in w.jobs()[0].job.payload.decode(), "it can be read with the ring"

    def refuses(job: Any) -> None:
        raise ValueError(f"cannot deliver {job.payload!r}")

    assert Enqueuer(w.safe, {"receipt": refuses}).run_once().failed == 1
    assert w.jobs()[0].error == "ValueError"
    scan(w)


def scan(w: World) -> None:
    """The file, its log and its index, as they lie on the disk."""
    for part in Path(w.database).parent.glob(Path(w.database).name + "*"):
        data = part.read_bytes()
        for shape in (CANARY.encode(), CANARY.encode("utf-16-le"), CANARY.encode().hex().encode()):
            assert shape not in data, f"{part.name} holds it"


def test_the_scan_would_find_it(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    world = make_world(request, tmp_path, "sqlite", "sync")
    op = declare(world)
    op(CANARY, "finish", key="k")
    with pytest.raises(AssertionError, match="holds it"):
        scan(world)
    world.close()


def test_an_error_of_a_publisher_is_kept_where_nothing_is_sealed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    world = make_world(request, tmp_path, "sqlite", "sync")
    op = declare(world)
    op(CANARY, "finish", key="k")
    (job,) = world.safe.execute(TakeJobs(1, b"t", 1, namespace="default"))
    assert world.safe.execute(FailJob(job.job.id, b"t", "ValueError: why", 0, False))
    assert world.jobs()[0].error == "ValueError: why"
    world.close()
