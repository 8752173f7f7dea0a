"""The compiled helper, if it is installed: `pip install 'retrysafe[speedups]'` (distributions/retrysafe-speedups).

It has a few functions that every request runs. Each has its definition in Python, and gives the same bytes, or None if
something is unusual; the definition is asked then. So it decides nothing, and processes with and without it share one
store. RETRYSAFE_SPEEDUPS=off leaves it out; the helper itself reads that variable, because core reads no environment.
Decision 80 says what it saves.
"""

from __future__ import annotations

from typing import Protocol

FORM = 1
"""The form of the helper that this release knows (`FORM` in retrysafe_speedups)."""


class Speedups(Protocol):
    """What the helper offers. Its definitions: core/fingerprint.py, stores/redis/rows.py, stores/redis/packing.py."""

    def canonicalize_json(self, body: bytes, /) -> bytes | None: ...

    def encode_born(  # noqa: PLR0917  (values, not an object: C takes them by position)
        self,
        algorithm: str,
        digest: bytes,
        length: int,
        namespace: str,
        kind: str,
        scope: str,
        key: str,
        target: str,
        run: bytes,
        /,
    ) -> bytes | None: ...

    def encode_answer(
        self, status: int, body: bytes, headers: tuple[tuple[str, str], ...], gone: str, /
    ) -> bytes | None: ...

    def pack_key(self, head: bytes, record_id: bytes, /) -> bytes | None: ...

    def pack_words(self, *words: bytes | int) -> bytes | None: ...


def load_speedups() -> tuple[Speedups | None, str]:
    """The helper, or None, and a sentence that says which and why."""
    try:
        import retrysafe_speedups
    except ImportError as error:  # not installed, installed without its C part, or switched off
        return None, f"off: {error}"
    if retrysafe_speedups.FORM != FORM:
        return None, f"off: retrysafe-speedups has form {retrysafe_speedups.FORM}, this retrysafe knows form {FORM}"
    return retrysafe_speedups, "on"


SPEEDUPS, STATUS = load_speedups()
