"""The entries of a long journal, put into words a block at a time.

A journal is written whole with every commit, but its entries hardly change: the last one does, and while an operation
is undone one after the other from the back. So what a full block of entries reads like is kept, and handed on to the
next journal if nothing in that block changed. A commit then costs the entries of one block, and a copy of the bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

SIZE = 64
"""Entries to a block: a commit puts up to so many texts together anew, and joins one text for each block before."""


class BlockEntry(Protocol):
    """What is needed of an entry of the journal."""

    @property
    def step(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def given(self) -> str: ...
    def encode(self) -> str: ...


class Words(NamedTuple):
    """How entries that stand together are written."""

    texts: str
    givens: str
    given: bool
    """Whether any of them has one."""


class Block(NamedTuple):
    """What is kept of a full block."""

    words: Words
    calls: Mapping[str, int]
    """How many of its entries are of each step."""
    states: Mapping[str, int]
    """How many are in each state."""


Blocks = tuple[Block | None, ...]
"""One for each full block, None where it was not made yet or where an entry has changed since."""


def encode_entries(entries: Sequence[BlockEntry]) -> Words:
    givens = [entry.given for entry in entries]
    texts = ",".join([entry.encode() for entry in entries])
    if not any(givens):
        return Words(texts, ",".join(['""'] * len(givens)), False)
    return Words(texts, json.dumps(givens, separators=(",", ":"))[1:-1], True)


def fill(blocks: Blocks, entries: Sequence[BlockEntry]) -> Blocks:
    """The same with every full block made."""
    full = len(entries) // SIZE
    if len(blocks) == full and None not in blocks:
        return blocks
    known = (*blocks[:full], *[None] * (full - len(blocks)))
    return tuple(block or _make(entries[at * SIZE : (at + 1) * SIZE]) for at, block in enumerate(known))


def _make(entries: Sequence[BlockEntry]) -> Block:
    calls, states = Counter(entry.step for entry in entries), Counter(entry.state for entry in entries)
    return Block(encode_entries(entries), calls, states)


def forget(blocks: Blocks, place: int) -> Blocks:
    """The same after the entry at this place was changed or added."""
    at = place // SIZE
    return blocks if at >= len(blocks) else (*blocks[:at], None, *blocks[at + 1 :])


def write(blocks: Blocks, entries: Sequence[BlockEntry]) -> Words:
    """All entries. Every full block is there."""
    rest = entries[len(blocks) * SIZE :]
    parts = [block.words for block in blocks if block is not None]
    parts += [encode_entries(rest)] if rest else []
    texts, givens = ",".join([part.texts for part in parts]), ",".join([part.givens for part in parts])
    return Words(texts, givens, any(part.given for part in parts))


def count_calls(blocks: Blocks, entries: Sequence[BlockEntry], step: str, place: int) -> int:
    """How many of the entries before this place are of this step. Every full block is there."""
    at = min(place // SIZE, len(blocks))
    before = sum(block.calls.get(step, 0) for block in blocks[:at] if block is not None)
    return before + sum(entry.step == step for entry in entries[at * SIZE : place])


def count_states(blocks: Blocks, entries: Sequence[BlockEntry], states: Collection[str]) -> int:
    """How many entries are in one of these states. Every full block is there."""
    before = sum(block.states.get(state, 0) for block in blocks if block is not None for state in states)
    return before + sum(entry.state in states for entry in entries[len(blocks) * SIZE :])
