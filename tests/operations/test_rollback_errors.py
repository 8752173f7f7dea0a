"""A rollback that fails must not hide the error of the step. A step whose outcome is unknown would be taken for a
failed step, and run again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from retrysafe.engine.effects import RunTransaction
from retrysafe.operations.errors import StepOutcomeUnknown
from retrysafe.operations.perform import AsyncOperationPerformer, OperationPerformer
from retrysafe.transactions.base import AfterCommitError


class Source:
    """A database that raises `at_the_end` when its transaction is rolled back or committed."""

    def __init__(self, at_the_end: Exception) -> None:
        self._at_the_end = at_the_end

    @contextmanager
    def begin(self) -> Iterator[Any]:
        try:
            yield self
        finally:
            raise self._at_the_end


class AsyncSource(Source):
    def begin(self) -> Any:
        return self.abegin()

    @asynccontextmanager
    async def abegin(self) -> AsyncIterator[Any]:
        with super().begin() as tx:
            yield tx


def transact(mode: str, flow: Any, at_the_end: Exception) -> Any:
    nothing: Any = None
    if mode == "sync":
        return OperationPerformer(nothing, lambda: Source(at_the_end), nothing)(RunTransaction(flow))
    source: Any = AsyncSource(at_the_end)
    return asyncio.run(AsyncOperationPerformer(nothing, lambda: source, nothing)(RunTransaction(flow)))


def fail(tx: Any) -> Any:
    yield from ()
    raise StepOutcomeUnknown("pay", "it committed by itself", undoable=False)


def succeed(tx: Any) -> Any:
    yield from ()
    return "done"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_error_of_the_step_counts(mode: str) -> None:
    with pytest.raises(StepOutcomeUnknown, match="it committed by itself") as raised:
        transact(mode, fail, ConnectionError("the rollback failed"))
    assert isinstance(raised.value.__context__, ConnectionError), "the other error is kept as its context"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_error_of_the_commit_is_raised_if_the_step_did_not_fail(mode: str) -> None:
    with pytest.raises(ConnectionError, match="the commit failed"):
        transact(mode, succeed, ConnectionError("the commit failed"))


def test_a_hook_that_fails_after_the_commit_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert transact("sync", succeed, AfterCommitError(RuntimeError("the hook failed"))) == "done"
    assert "after the commit of a local step failed" in caplog.text


def test_a_failed_step_is_not_taken_for_committed_because_of_a_hook() -> None:
    with pytest.raises(StepOutcomeUnknown):
        transact("sync", fail, AfterCommitError(RuntimeError("the hook failed")))
