"""Paging through records, as people want them: what is uncertain includes what is about to be called so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from retrysafe.core.ops import List
from retrysafe.core.records import Record
from retrysafe.core.states import State


def iter_records(execute: Callable[[Any], Any], wanted: List) -> Iterator[Record]:
    """Every record the list asks for, page by page. A guard whose lease lapsed is uncertain before the sweeper has said
    so, and can be resolved: whoever asks for what is uncertain sees it."""
    yield from _iter_pages(execute, wanted)
    if wanted.state is State.UNCERTAIN and not wanted.lapsed:
        lapsed = replace(wanted, state=State.CLAIMED, lapsed=True)
        yield from (record for record in _iter_pages(execute, lapsed) if record.on_lapse == "uncertain")


def _iter_pages(execute: Callable[[Any], Any], wanted: List) -> Iterator[Record]:
    cursor = ""
    while True:
        page = execute(replace(wanted, cursor=cursor))
        yield from page.records
        cursor = page.cursor
        if not cursor:
            return
