"""What the file system under a store's file is worth: a doctor's question for every embedded store."""

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
    """`risk`: what happens to this store when two machines believe that they have the lock."""
    if kind in NETWORK_FILESYSTEMS:
        fix = "move the file to a local disk; for several machines use PostgreSQL"
        return bad("filesystem", kind, "best-effort", f"locks over a network do not hold: {risk}", fix, invariant="I1")
    if kind in MEMORY_FILESYSTEMS:
        return bad("filesystem", kind, "best-effort", "it is memory: a restart empties it", "move the file to a disk")
    return good("filesystem", kind, "a local disk, as far as the system says")


def read_filesystem_kind(path: Path) -> str:
    """The kind of file system the file is on, where the system tells (Linux); `unknown` elsewhere."""
    try:
        mounts = MOUNTS_FILE.read_text().splitlines()
    except OSError:
        return "unknown"
    return find_mount_kind(path.resolve(), mounts)


def find_mount_kind(path: Path, mounts: list[str]) -> str:
    """Of the mounts that hold the path the deepest counts, and of several in one place the last."""
    found, depth = "unknown", -1
    for line in mounts:
        _, place, kind, *_ = line.split(" ")
        mounted = Path(place.encode("latin-1", "replace").decode("unicode_escape"))
        if path.is_relative_to(mounted) and len(mounted.parts) >= depth:
            found, depth = kind, len(mounted.parts)
    return found
