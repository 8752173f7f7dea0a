"""A command that changes a record changes the right one, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Answer, Key, RetrySafe
from retrysafe.cli import operations
from retrysafe.cli.main import main
from retrysafe.core.keys import record_id
from retrysafe.core.ops import Lookup
from retrysafe.core.states import State
from retrysafe.errors import NotFinished, UsageError
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim

VICTIM = record_id("http", "default", "acme", "victim-1")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Two guards that lapsed long ago. The key of one looks like the id of the other."""
    url = f"sqlite:///{tmp_path}/keys.db"
    store = open_store(url)
    store.migrate()
    for key, scope in (("victim-1", "acme"), (VICTIM.hex()[:12], "mallory"), (VICTIM.hex(), "mallory")):
        store.execute(claim(key, namespace="default", scope=scope, kind="http", now=1_000_000))
    store.close()
    return url


def state_of(url: str, record: bytes) -> State:
    store = open_store(url)
    try:
        found = store.execute(Lookup(record)).record
        assert found is not None
        return found.state
    finally:
        store.close()


def resolve(url: str, *words: str) -> int:
    return main(["keys", "resolve", url, *words, "--did-not-happen", "--because", "the bank shows nothing"])


@pytest.mark.parametrize("digits", [12, 64])
def test_a_key_that_reads_like_an_id_resolves_nobody_else(
    url: str, digits: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resolve(url, VICTIM.hex()[:digits]) != 0
    assert "names 2 keys" in capsys.readouterr().err
    assert state_of(url, VICTIM) is State.CLAIMED
    assert resolve(url, VICTIM.hex()[:digits], "--scope", "mallory") == 0
    assert state_of(url, VICTIM) is State.CLAIMED
    assert state_of(url, record_id("http", "default", "mallory", VICTIM.hex()[:digits])) is State.RELEASED


@pytest.mark.parametrize("digits", [12, 64])
def test_who_says_that_it_is_an_id_means_the_id(url: str, digits: int) -> None:
    assert resolve(url, VICTIM.hex()[:digits], "--id") == 0
    assert state_of(url, VICTIM) is State.RELEASED


def test_the_scope_that_was_given_counts_for_a_whole_id_too(url: str) -> None:
    assert resolve(url, VICTIM.hex(), "--id", "--scope", "nobody") != 0
    assert state_of(url, VICTIM) is State.CLAIMED


def test_an_id_is_digits(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert resolve(url, "victim-1", "--id") != 0
    assert "'victim-1'" in capsys.readouterr().err


@pytest.fixture
def pay(tmp_path: Path) -> Callable[..., Any]:
    """An operation in an application."""

    def declare(namespace: str = "default") -> tuple[RetrySafe, Any, list[str]]:
        safe = RetrySafe(f"sqlite:///{tmp_path}/runs.db", namespace=namespace)
        safe.store.migrate()
        op, sent = safe.operation("pay"), []

        @op.body
        def body(who: str) -> Answer:
            sent.append(who)
            if len(sent) < 3 and namespace == "default":
                raise RuntimeError("not yet")
            return Answer(200, who)

        return safe, op, sent

    return declare


def test_a_call_and_a_request_with_one_key_are_two_runs(pay: Callable[..., Any]) -> None:
    safe, op, sent = pay()
    for key in ("order-7", Key("order-7", "acme")):
        with pytest.raises(NotFinished):
            op("direct" if isinstance(key, str) else "acme", key=key)
    with pytest.raises(UsageError, match="names 2 runs"):
        operations.find_run(safe, "order-7", to_act=True)
    for scope, who in (("pay", "direct"), ("acme", "acme")):
        kind = "operation" if scope == "pay" else "http"
        found = operations.find_run(safe, Key("order-7", scope, kind).id("default").hex(), by_id=True, to_act=True)
        assert op.resume_id(found.id).answer.json() == who
    assert sent == ["direct", "acme", "direct", "acme"]
    safe.close()


def test_a_run_of_another_application_is_none(pay: Callable[..., Any]) -> None:
    """I34: a command does not change a run of another application."""
    other, theirs, _ = pay("other")
    theirs("x", key="order-7")
    safe, op, sent = pay()
    theirs_id = Key("order-7", "pay", "operation").id("other")
    for act in (lambda: op.resume_id(theirs_id, because="x"), lambda: op.undo_id(theirs_id, because="x")):
        with pytest.raises(UsageError, match="there is no record"):
            act()
    assert sent == []
    safe.close()
    other.close()
