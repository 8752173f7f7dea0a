"""What a SQLite file's place and settings are worth."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from retrysafe.errors import StoreUnavailable
from retrysafe.stores.diagnosis import Diagnosis, Finding, bad, good

NETWORKED = ("nfs", "nfs4", "cifs", "smb", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs")
IN_MEMORY = ("tmpfs", "ramfs")
SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}

Settings = Mapping[str, Any]


def diagnose(path: str, connect: Any) -> Diagnosis:
    """`connect` opens the file as the store does: what counts is what the store's own connections are set to."""
    try:
        connection = connect()
        try:
            journal = connection.execute("PRAGMA journal_mode").fetchone()[0]
            synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{path} cannot be opened: {error}") from error
    settings = {"journal_mode": journal, "synchronous": synchronous, "filesystem": filesystem(Path(path))}
    return Diagnosis(f"SQLite {sqlite3.sqlite_version}", tuple(judge(settings)))


def judge(settings: Settings) -> Iterator[Finding]:
    mode = str(settings["journal_mode"]).lower()
    if mode in ("memory", "off"):
        fix = "PRAGMA journal_mode = wal;"
        yield bad("journal_mode", mode, "best-effort", "a crash in mid-write can destroy the file", fix)
    else:
        yield good("journal_mode", mode, "a crash leaves either the whole commit or nothing of it")
    level = SYNCHRONOUS.get(settings["synchronous"], str(settings["synchronous"]))
    if level in ("FULL", "EXTRA"):
        yield good("synchronous", level, "a claim is on disk before it is acknowledged")
    else:
        fix = "nothing to set: the store asks for FULL; a wrapper around sqlite3.connect takes it back"
        yield bad("synchronous", level, "best-effort", "a power cut loses the last commits", fix)
    yield _place(settings["filesystem"])


def _place(kind: str) -> Finding:
    if kind in NETWORKED:
        fix = "move the file to a local disk; for several machines use PostgreSQL"
        return bad(
            "filesystem",
            kind,
            "best-effort",
            "locks over a network do not hold: two may get one key",
            fix,
            invariant="I1",
        )
    if kind in IN_MEMORY:
        return bad("filesystem", kind, "best-effort", "it is memory: a restart empties it", "move the file to a disk")
    return good("filesystem", kind, "a local disk, as far as the system says")


def filesystem(path: Path) -> str:
    """The kind of file system the file is on, where the system tells (Linux); `unknown` elsewhere."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return "unknown"
    return kind_of(path.resolve(), mounts)


def kind_of(path: Path, mounts: list[str]) -> str:
    """Of the mounts that hold the path the deepest counts, and of several in one place the last."""
    found, depth = "unknown", -1
    for line in mounts:
        _, place, kind, *_ = line.split(" ")
        mounted = Path(place.encode("latin-1", "replace").decode("unicode_escape"))
        if path.is_relative_to(mounted) and len(mounted.parts) >= depth:
            found, depth = kind, len(mounted.parts)
    return found
