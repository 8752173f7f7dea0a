"""A body that commits by statement and then loses its only connection, while the store's replies are lost, too, as when
a server restarts. The key stays with an operator: the background task that gives claims back must not give it back."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import psycopg
import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.core.ops import Claim, Lookup, Op
from retrysafe.core.states import State
from retrysafe.errors import OutcomeUnknown, StoreUnclear, TransactionSplit
from retrysafe.policy import Policy
from retrysafe.stores.base import Store
from retrysafe.stores.postgres.dialect import parse_url
from retrysafe.stores.registry import open_store
from retrysafe.stores.wrappers import StoreWrapper
from retrysafe.transactions import run
from tests.transactions.rigs import World, task

R = TypeVar("R")
PATIENCE = 60.0


class LosingReplies(StoreWrapper):
    """Carries claims out, and loses the replies to as many of them as `lost` says."""

    def __init__(self, store: Store, url: str) -> None:
        super().__init__(store)
        self.names = parse_url(url).names
        self.lost = 0

    def execute(self, op: Op[R]) -> R:
        reply = super().execute(op)
        if isinstance(op, Claim) and self.lost:
            self.lost -= 1
            raise StoreUnclear("its reply was lost")
        return reply


def wait_for_follow_ups() -> None:
    for thread in threading.enumerate():
        if thread.name == "retrysafe-orphaned-claims":
            thread.join(PATIENCE)


@pytest.mark.store("postgres")
@pytest.mark.parametrize("abandoned", ["uncertain", "rerun"])
@pytest.mark.parametrize("lost", [0, 1, 30])
def test_a_split_that_cannot_be_marked_is_not_given_back(postgres: World, abandoned: Any, lost: int) -> None:
    store = LosingReplies(open_store(postgres.url), postgres.url)
    with RetrySafe(store) as safe, psycopg.connect(postgres.plain) as connection:
        this = task(safe, "k", 1, Policy(abandoned=abandoned, failures="release", lease=2.0))

        def body(tx: Any) -> Answer:
            tx.execute("INSERT INTO effects VALUES ('a')")
            tx.execute("COMMIT")
            store.lost = lost
            postgres.query(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 60000)")
            tx.execute("SELECT 1")
            return Answer(201, {})

        with pytest.raises(TransactionSplit):
            run(safe, this, connection, body)
        store.lost = 0
        wait_for_follow_ups()
        record = safe.execute(Lookup(this.key.id("default"))).record
        assert record is not None
        assert record.state in (State.CLAIMED, State.UNCERTAIN)
        with psycopg.connect(postgres.plain) as retry, pytest.raises(OutcomeUnknown):
            run(safe, this, retry, lambda tx: pytest.fail("ran again"))
    assert postgres.effects() == ["a"]
