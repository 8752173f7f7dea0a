"""The file system of a store's file, for the doctors of the embedded stores."""

from __future__ import annotations

from pathlib import Path

from retrysafe.stores.diagnosis import Finding, bad, good

NETWORK_FILESYSTEMS = (
    "nfs",
    "nfs4",
    "cifs",
    "smb",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
    "fuse.sshfs",
)
MEMORY_FILESYSTEMS = ("tmpfs", "ramfs")

MOUNTS_FILE = Path("/proc/self/mounts")


def check_filesystem(kind: str, risk: str) -> Finding:
    """A finding on the kind of file system. `risk` says what happens here if two machines both have the lock."""
    if kind in NETWORK_FILESYSTEMS:
        fix = "move the file to a local disk; for several machines use PostgreSQL"
        return bad("filesystem", kind, "best-effort", f"locks over a network do not hold: {risk}", fix, invariant="I1")
    if kind in MEMORY_FILESYSTEMS:
        return bad(
            "filesystem",
            kind,
            "best-effort",
            "the file system is in memory: a restart empties it",
            "move the file to a disk",
        )
    return good("filesystem", kind, "a local disk, as far as the system says")


def read_filesystem_kind(path: Path) -> str:
    """The kind of the file's file system on Linux; `unknown` on other systems."""
    try:
        mounts = MOUNTS_FILE.read_text().splitlines()
    except OSError:
        return "unknown"
    return find_mount_kind(path.resolve(), mounts)


def find_mount_kind(path: Path, mounts: list[str]) -> str:
    """The kind of the deepest mount that contains the path. Of several mounts in one place the last counts."""
    found, depth = "unknown", -1
    for line in mounts:
        _, place, kind, *_ = line.split(" ")
        mounted = Path(place.encode("latin-1", "replace").decode("unicode_escape"))
        if path.is_relative_to(mounted) and len(mounted.parts) >= depth:
            found, depth = kind, len(mounted.parts)
    return found
