"""An ablation proves something only if its patch ran, did not crash, and is what broke the rule."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest

from retrysafe.core.ops import Claim
from retrysafe.engine import aperform, guard, perform
from retrysafe.testing.simulation import Outcome, Scenario
from retrysafe.testing.simulation.shop import deploy
from tests.simulation import campaigns
from tests.simulation.ablations import table
from tests.simulation.ablations.base import (
    Ablation,
    Situation,
    always,
    explain_survivor,
    find,
    nothing,
    put,
    substitute,
    together,
)
from tests.simulation.ablations.reach import AblationError, check_fits, watch, watch_reach

GUARDS = Situation(kinds=("guard",))
ONE = "one effect"


def crash(original: Any) -> Any:
    def judge(op: Claim, reply: Any) -> Any:
        return reply.a_name_of_last_year

    return judge


def crash_in_a_flow(original: Any) -> Any:
    def claim_or_wait(claim: Claim, task: Any, events: Any) -> Any:
        reply = yield claim
        return reply["record"]

    return claim_or_wait


def crash_in_a_coroutine(original: Any) -> Any:
    async def invoke(self: Any, call: Any) -> Any:
        return await call.a_name_of_last_year()

    return invoke


@pytest.mark.parametrize(
    "patch",
    [
        substitute(guard, "judge", crash),
        substitute(guard, "claim_or_wait", crash_in_a_flow),
        substitute(aperform.AsyncPerformer, "_invoke", crash_in_a_coroutine),
    ],
    ids=["function", "flow", "coroutine"],
)
def test_a_patch_that_crashes_is_an_error(patch: Any) -> None:
    with pytest.raises(AblationError, match=r"seed 0: the patch crashes: .*(AttributeError|TypeError)"):
        find(Ablation("old", ONE, patch, GUARDS), 0, 3)


def test_what_crashes_behind_a_patch_is_an_error() -> None:
    """The patch itself runs well, and what it returns is of last year."""
    broken = Ablation("old", ONE, substitute(guard.Task, "build_claim", lambda original: lambda self: None), GUARDS)
    with pytest.raises(AblationError, match="seed 0: the application crashes: "):
        find(broken, 0, 3)


def test_a_patch_that_nobody_comes_to_is_told_apart() -> None:
    unreached = Ablation("elsewhere", ONE, always(perform.Performer, "execute", None), GUARDS)
    assert find(unreached, 0, 2) == (None, {}, 0)
    assert "its patch never ran in " in explain_survivor(unreached)


def test_a_patch_that_nobody_notices_is_told_apart() -> None:
    unnoticed = Ablation("harmless", ONE, substitute(guard, "judge", lambda original: original), GUARDS)
    found = find(unnoticed, 0, 2)
    assert found.seed is None
    assert found.reached["engine.guard.judge"] > 0
    assert "engine.guard.judge" in explain_survivor(unnoticed)


def complain(outcome: Outcome) -> Any:
    yield "planted: this scenario breaks its rule by itself"


PLANTED = Situation(Scenario(deploy, ("guard",), checkers=(complain,)))


def test_what_is_broken_without_the_patch_too_is_no_discovery() -> None:
    patch = substitute(guard, "judge", lambda original: original)
    assert find(Ablation("innocent", "planted", patch, PLANTED), 0, 2).seed is None


def test_a_patch_that_is_not_watched_is_an_error() -> None:
    with pytest.raises(AblationError, match="the patch never ran"):
        find(Ablation("unwatched", "planted", nothing, PLANTED), 0, 1)


def test_another_rule_than_the_named_one_is_no_discovery() -> None:
    patch = substitute(guard, "judge", lambda original: original)
    assert find(Ablation("other", "another rule", patch, PLANTED), 0, 1).seed is None


def test_every_part_is_counted() -> None:
    patch = together(
        substitute(guard, "judge", lambda original: original),
        substitute(guard, "refusal_error", lambda original: original),
    )
    with patch(), watch_reach() as reach:
        guard.refusal_error  # noqa: B018 - to look is not to call
        GUARDS.play(0)
    assert set(reach.counts) <= {"engine.guard.judge", "engine.guard.refusal_error"}
    assert reach.counts["engine.guard.judge"] > 0


def test_a_patch_of_another_signature_is_refused() -> None:
    def judge(op: Claim) -> Any:
        return None

    with pytest.raises(AblationError, match=r"engine\.guard\.judge: the patch takes \(op.*bring the patch up to date"):
        put(guard, "judge", judge)


def test_keyword_parameters_are_compared() -> None:
    with pytest.raises(AblationError):
        check_fits("here", lambda one, *, two: None, lambda one: None)
    check_fits("here", lambda one, *, two=1: None, lambda *args, **kwargs: None)
    check_fits("here", lambda one, two=1: None, lambda one, other=2: None)


def test_a_value_cannot_be_watched() -> None:
    with pytest.raises(AblationError, match="is no function"):
        watch("here", 5)


def test_the_table_says_why_it_survived(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    unreached = Ablation("elsewhere", ONE, always(perform.Performer, "execute", None), GUARDS)
    monkeypatch.setattr(table, "ABLATIONS", (unreached,))
    assert table.main(["--only", "elsewhere", "--runs", "1", "--max", "0"]) == 1
    assert "its patch never ran in " in capsys.readouterr().err


class HereAndNow:
    """A pool of one process: this one. So what the test has put in place counts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> HereAndNow:
        return self

    def __exit__(self, *why: object) -> None:
        pass

    def map(self, function: Any, tasks: Any) -> Any:
        return map(function, tasks)


def test_the_quick_proof_fails_where_a_patch_crashes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def patch() -> AbstractContextManager[Any]:
        return put(guard, "judge", crash(None))

    monkeypatch.setattr(campaigns, "ABLATIONS", (Ablation("old", ONE, patch, GUARDS),))
    monkeypatch.setattr(campaigns, "ProcessPoolExecutor", HereAndNow)
    assert campaigns.run_ablations("1", 1) == 1
    assert "PROVES NOTHING: old, seed" in capsys.readouterr().out
