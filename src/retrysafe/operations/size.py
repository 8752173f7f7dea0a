"""A journal that has grown long is told to whoever looks after the program, while it still fits into the store."""

from __future__ import annotations

import logging

LARGE = 128 * 1024
"""Bytes: about a thousand small steps. A journal is written whole with every step (docs/howto/operations.md)."""

_log = logging.getLogger("retrysafe")


def is_large(progress: bytes) -> bool:
    return len(progress) > LARGE


def warn_of(target: str, record_id: bytes, steps: int, progress: bytes) -> None:
    _log.warning(
        "%s %s: the journal has %d steps and %d bytes, and is written whole with every step; split it into several "
        "operations, or let its steps return less",
        *(target, record_id.hex()[:16], steps, len(progress)),
    )
