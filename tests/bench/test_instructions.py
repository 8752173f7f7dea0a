"""Counting instructions still works, and counts what it says. Nothing is said about the figures of retrysafe."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from benchmarks.callgrind import count_child
from benchmarks.instructions import cost_of

from tests.conftest import in_ci


def needs_valgrind() -> None:
    """Not fetched for a test alone: skipped at home, failed in CI."""
    if shutil.which("valgrind") is None or shutil.which("cc") is None:
        if in_ci():
            pytest.fail("valgrind and a C compiler are needed to count instructions", pytrace=False)
        pytest.skip("valgrind or cc is not installed")


@pytest.mark.timeout(1200)  # only against hanging: valgrind takes minutes on a busy machine
def test_twice_the_work_is_counted_as_twice_the_instructions() -> None:
    needs_valgrind()
    small, large = (count_child("tests.bench.counted_sum", [str(size)], 50)[0] for size in (1_000, 2_000))
    assert 1.9 < large / small < 2.1


@pytest.mark.timeout(1200)  # only against hanging: valgrind takes minutes on a busy machine
def test_a_protected_request_costs_more_than_a_bare_one(tmp_path: Path) -> None:
    needs_valgrind()
    bare = cost_of("bare-plain", "new", "-", 8)
    ours = cost_of("ours-edge-plain", "new", f"sqlite:///{tmp_path}/counted.db", 8)
    assert 0 < bare.instructions < ours.instructions
    assert (bare.own, ours.own > 0) == (0, True)
