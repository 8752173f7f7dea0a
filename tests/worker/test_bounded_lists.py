"""Lists for people read no more than they show: behind them may be millions."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.cli import operations
from retrysafe.cli.main import main
from retrysafe.core.ops import List, Op
from retrysafe.operators import record_search


class Counting(RetrySafe):
    """Notes how many records its lists have given."""

    read = 0

    def execute(self, op: Op[Any]) -> Any:
        reply = super().execute(op)
        if isinstance(op, List):
            self.read += len(reply.records)
        return reply


def test_a_list_of_operations_stops_when_it_has_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_search, "PAGE_RECORDS", 10)
    with Counting("memory://") as safe:
        greet = safe.operation("greet")

        @greet.body
        def body(n: int) -> Answer:
            if n == 7:
                raise RuntimeError("not this one")
            return Answer(200)

        for n in range(200):
            try:
                greet(n, key=f"k{n}")
            except Exception:
                assert n == 7
        monkeypatch.setattr(operations, "load_safe", lambda text: safe)
        assert main(["operations", "x:y", "--list", "--limit", "3"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3
    assert "k7" in shown[0], "what is not finished comes first"
    assert safe.read <= 20, "200 are there"
