"""Encodes the entries of a long journal block by block, and caches each full block.

A journal is written whole with every commit, but its entries hardly change: only the last one does, and during an undo
one after the other from the back. So the encoded text of a full block is kept, and handed to the next journal if no
entry of that block changed. A commit then encodes the entries of one block and copies the bytes of the others.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

BLOCK_ENTRIES = 64
"""Entries in a block. A commit encodes up to this many entries, and joins one text for each block before."""


class BlockEntry(Protocol):
    """The part of a journal entry that is used here."""

    @property
    def step(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def given(self) -> str: ...
    def encode(self) -> str: ...


class EncodedEntries(NamedTuple):
    """The text of consecutive entries."""

    texts: str
    givens: str
    has_given: bool
    """True if any entry has a digest of its arguments."""


class EntryBlock(NamedTuple):
    """What is cached of a full block."""

    encoded: EncodedEntries
    calls: Mapping[str, int]
    """The number of its entries by step."""
    states: Mapping[str, int]
    """The number of its entries by state."""


Blocks = tuple[EntryBlock | None, ...]
"""One item for each full block. None: the block was not made yet, or an entry has changed since."""


def encode_entries(entries: Sequence[BlockEntry]) -> EncodedEntries:
    givens = [entry.given for entry in entries]
    texts = ",".join([entry.encode() for entry in entries])
    if not any(givens):
        return EncodedEntries(texts, ",".join(['""'] * len(givens)), False)
    return EncodedEntries(texts, json.dumps(givens, separators=(",", ":"))[1:-1], True)


def fill_blocks(blocks: Blocks, entries: Sequence[BlockEntry]) -> Blocks:
    """The same blocks, with every full block made."""
    full = len(entries) // BLOCK_ENTRIES
    if len(blocks) == full and None not in blocks:
        return blocks
    known = (*blocks[:full], *[None] * (full - len(blocks)))
    return tuple(
        block or _make_block(entries[at * BLOCK_ENTRIES : (at + 1) * BLOCK_ENTRIES]) for at, block in enumerate(known)
    )


def _make_block(entries: Sequence[BlockEntry]) -> EntryBlock:
    calls, states = Counter(entry.step for entry in entries), Counter(entry.state for entry in entries)
    return EntryBlock(encode_entries(entries), calls, states)


def drop_block(blocks: Blocks, place: int) -> Blocks:
    """The same blocks, after the entry at this place was changed or added."""
    at = place // BLOCK_ENTRIES
    return blocks if at >= len(blocks) else (*blocks[:at], None, *blocks[at + 1 :])


# The functions below need every full block to be made (`fill_blocks`).


def join_blocks(blocks: Blocks, entries: Sequence[BlockEntry]) -> EncodedEntries:
    """The text of all entries."""
    if not blocks:
        return encode_entries(entries)
    rest = entries[len(blocks) * BLOCK_ENTRIES :]
    parts = [block.encoded for block in blocks if block is not None]
    parts += [encode_entries(rest)] if rest else []
    texts, givens = ",".join([part.texts for part in parts]), ",".join([part.givens for part in parts])
    return EncodedEntries(texts, givens, any(part.has_given for part in parts))


def count_calls(blocks: Blocks, entries: Sequence[BlockEntry], step: str, place: int) -> int:
    """The number of entries of this step before this place."""
    at = min(place // BLOCK_ENTRIES, len(blocks))
    before = sum(block.calls.get(step, 0) for block in blocks[:at] if block is not None)
    return before + sum(entry.step == step for entry in entries[at * BLOCK_ENTRIES : place])


def count_states(blocks: Blocks, entries: Sequence[BlockEntry], states: Collection[str]) -> int:
    """The number of entries that are in one of these states."""
    before = sum(block.states.get(state, 0) for block in blocks if block is not None for state in states)
    return before + sum(entry.state in states for entry in entries[len(blocks) * BLOCK_ENTRIES :])
