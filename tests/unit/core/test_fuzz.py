"""The fuzz target, short. The long run: `python tools/fuzz.py keys --count 10000000` (S5)."""

from __future__ import annotations

import pytest
from tools import fuzz


@pytest.mark.parametrize("seed", range(4))
def test_only_malformed_key_ever_escapes_the_parser(seed: int) -> None:
    accepted, refused = fuzz.fuzz("keys", 25_000, seed)
    assert accepted > 1_000
    assert refused > 1_000
