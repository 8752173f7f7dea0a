"""The store. What an operation does to a record is retrysafe's (core/moves.py); a store only has to read, decide and
write as one step, so that nobody is told "yours" before it is on disk.

One lock for the folder (`flock`, which ends with its process, however it dies), one file per record, replaced whole.
It is correct and slow: every write is flushed, and listing reads everything.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from retrysafe.core.moves import claim, move, reapable
from retrysafe.core.ops import FENCED, Claim, List, Lookup, LookupReply, Op, Page, Reap, Stats, StatsReply
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.errors import StoreUnclear, UsageError
from retrysafe.stores.base import AsyncStore, Capabilities, Store, read_id_cursor
from retrysafe.stores.diagnosis import Diagnosis, good
from retrysafe.stores.json_records import dump_record, load_record

R = TypeVar("R")

CAPABILITIES = Capabilities(name="folder", durable=True, shared=True, transactions=False, clock="host")


class FolderStore:
    """Records in a folder of a local disk. Any number of threads and processes."""

    capabilities = CAPABILITIES

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def execute(self, op: Op[R]) -> R:
        [reply] = self.execute_many([op])
        return reply  # type: ignore[no-any-return]  # the reply to this very operation

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        try:
            with self._locked():
                return [self._apply(op) for op in ops]
        except OSError as error:  # a full disk, for example: some of it may be written, and sending it again tells
            raise StoreUnclear(f"the folder {self._folder} could not be read or written: {error}") from error

    def migrate(self) -> list[str]:
        new = not self._folder.exists()
        self._folder.mkdir(parents=True, exist_ok=True)
        return [f"created {self._folder.name}"] if new else []

    def close(self) -> None:
        """Nothing stays open between operations."""

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # given back when the file is closed, by whomever
            yield

    def _apply(self, op: Any) -> Any:
        now = time.time_ns() // 1000 if op.now is None else op.now
        if isinstance(op, Claim):
            record, reply = claim(self._read(op.id), op, now)
            self._write(record)
            return reply
        if isinstance(op, FENCED):
            record, applied = move(self._read(op.id), op, now)
            self._write(record)
            return applied
        if isinstance(op, Lookup):
            return LookupReply(self._read(op.id), now)
        if isinstance(op, Reap):
            return self._reap(op, now)
        if isinstance(op, List):
            return self._list(op, now)
        if isinstance(op, Stats):
            return self._stats(op, now)
        raise UsageError(f"the folder store does not know {type(op).__name__}: it has no outbox")

    # Files --------------------------------------------------------------------------------------

    def _path(self, record_id: bytes) -> Path:
        return self._folder / f"{record_id.hex()}.json"

    def _read(self, record_id: bytes) -> Record | None:
        try:
            return load_record(self._path(record_id).read_text())
        except FileNotFoundError:
            return None

    def _write(self, record: Record | None) -> None:
        """The whole file or nothing of it, on disk before anybody is told. None: there was nothing to change."""
        if record is None:
            return
        path = self._path(record.id)
        fresh = path.with_suffix(".new")
        with fresh.open("w") as file:
            file.write(dump_record(record))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        self._flush_folder()

    def _flush_folder(self) -> None:
        """A new name is on disk only when the folder is."""
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    # Everything at once -------------------------------------------------------------------------

    def _all(self) -> list[Record]:
        return [load_record(path.read_text()) for path in sorted(self._folder.glob("*.json"))]

    def _reap(self, op: Reap, now: int) -> int:
        expired = [each for each in self._all() if op.namespace in (None, each.namespace) and reapable(each, now)]
        reaped = sorted(expired, key=lambda record: record.expires)[: op.limit]
        for record in reaped:
            self._path(record.id).unlink()
        self._flush_folder()
        return len(reaped)

    def _list(self, op: List, now: int) -> Page:
        after = read_id_cursor(op.cursor)
        found = [record for record in self._all() if record.id > after and _listed(record, op, now)]
        page = found[: op.limit]
        return Page(tuple(page), page[-1].id.hex() if len(found) > len(page) else "")

    def _stats(self, op: Stats, now: int) -> StatsReply:
        records = [record for record in self._all() if op.namespace in (None, record.namespace)]
        counts = {state: sum(record.state is state for record in records) for state in State}
        return StatsReply(
            claimed=counts[State.CLAIMED],
            released=counts[State.RELEASED],
            completed=counts[State.COMPLETED],
            uncertain=counts[State.UNCERTAIN],
            lapsed=sum(record.lapsed(now) for record in records),
            expired=sum(reapable(record, now) for record in records),
            now=now,
        )


def _listed(record: Record, op: List, now: int) -> bool:
    wanted = {"namespace": op.namespace, "state": op.state, "kind": op.kind, "scope": op.scope}
    same = all(getattr(record, name) == value for name, value in wanted.items() if value is not None)
    over = op.state is State.RELEASED and record.expired(now)  # withdrawn, or released long ago
    resting = record.state is State.RELEASED and record.point != ""
    return same and not over and (not op.lapsed or record.lapsed(now)) and (not op.resting or resting)


class AsyncFolderStore:
    """The same in a thread: a flush blocks."""

    capabilities = CAPABILITIES

    def __init__(self, store: FolderStore) -> None:
        self._store = store

    async def execute(self, op: Op[R]) -> R:
        return await asyncio.to_thread(self._store.execute, op)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await asyncio.to_thread(self._store.execute_many, ops)

    async def migrate(self) -> list[str]:
        return self._store.migrate()

    async def aclose(self) -> None:
        """Nothing stays open between operations."""


class FolderBackend:
    """`folder:///var/lib/app/keys`. Registered in your package's metadata:

    [project.entry-points."retrysafe.stores"]
    folder = "your_package.store:backend"
    """

    capabilities = CAPABILITIES

    def open(self, url: str) -> Store:
        return FolderStore(_folder(url))

    def open_async(self, url: str) -> AsyncStore:
        return AsyncFolderStore(FolderStore(_folder(url)))

    def schema(self, url: str) -> str:
        return f"one file per record in {_folder(url)}\n"

    def diagnose(self, url: str) -> Diagnosis:
        """Optional: what `retrysafe doctor` says."""
        return Diagnosis(
            "folder", (good("fsync", "after every write", "a claim is on disk before it is acknowledged"),)
        )


def _folder(url: str) -> Path:
    return Path(url.partition("://")[2])


backend = FolderBackend()
