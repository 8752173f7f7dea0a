"""Chance that depends on a seed and a name or number alone, whatever was drawn before: one thing can be left out of a
history without changing the others. Much cheaper than seeding a `random.Random` for each draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import TypeVar

T = TypeVar("T")

_QUESTION = Struct("<QQ")
_FOUR = Struct("<4Q")
_UNIT = 2.0**-64
_MASK = 2**64 - 1


def draw_four(seed: int, number: int) -> tuple[float, float, float, float]:
    """Four numbers between 0 and 1."""
    one, two, three, four = _FOUR.unpack(blake2b(_QUESTION.pack(seed & _MASK, number), digest_size=32).digest())
    return one * _UNIT, two * _UNIT, three * _UNIT, four * _UNIT


def choose(seed: int, name: str, options: Sequence[T]) -> T:
    """One of the options."""
    digest = blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return options[int.from_bytes(digest, "little") % len(options)]


def draw_share(seed: int, name: str) -> float:
    """A number between 0 and 1."""
    digest = blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") * _UNIT
