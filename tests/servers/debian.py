"""Programs out of Debian packages, without root and without touching the system.

A package and everything it needs, its own C library included, are fetched from the machine's own mirror with apt-get
(download only) and unpacked under `.tools/debian/`. So a server of a newer Debian runs on an older one, through its
own loader. Fetched once; later runs find it there.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.base import ServerUnavailable

PLACE = Path(__file__).resolve().parents[2] / ".tools" / "debian"
FETCH_SECONDS = 300

_MIRROR = re.compile(r"(?m)^(?:URIs:|deb)\s+(?:\[[^\]]*\]\s+)?(\S+/debian/?)(?=\s|$)")
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class Prefix:
    """An unpacked package."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.usr = root / "usr"

    def command(self, program: str) -> list[str]:
        """How a program in it is run: by its own loader, with its own libraries."""
        loaders = sorted(self.root.rglob("ld-linux-*.so.*"))
        if not loaders:
            raise ServerUnavailable(f"{self.root} has no loader: the package was not unpacked as a whole")
        libraries = sorted({str(found.parent) for found in self.root.rglob("libc.so.6")} | self._library_folders())
        return [str(loaders[0]), "--library-path", ":".join(libraries), str(self.root / program)]

    def _library_folders(self) -> set[str]:
        return {
            str(found) for pattern in ("usr/lib/*-linux-gnu", "lib/*-linux-gnu") for found in self.root.glob(pattern)
        }


def package(suite: str, name: str) -> Prefix:
    """The package of a Debian suite, fetched if it is not there yet."""
    root = PLACE / f"{name}-{suite}"
    done = root / ".complete"
    if done.exists():
        return Prefix(root)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ServerUnavailable(f"{name} comes as a Debian package, and this machine has no apt-get and dpkg-deb")
    with alone(name):
        if not done.exists():
            shutil.rmtree(root, ignore_errors=True)
            try:
                _fetch(suite, name, root)
            except (OSError, subprocess.SubprocessError) as error:
                raise ServerUnavailable(f"{name} of Debian {suite} could not be fetched: {_said(error)}") from error
            done.touch()
    return Prefix(root)


def _fetch(suite: str, name: str, root: Path) -> None:
    apt = PLACE / f"{name}-{suite}.apt"
    for folder in ("etc/apt/preferences.d", "etc/apt/apt.conf.d", "var/lib/apt/lists/partial"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("var/cache/apt/archives/partial", "var/lib/dpkg"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    (apt / "etc/apt/sources.list").write_text(f"deb [signed-by={_KEYRING}] {_mirror()} {suite} main\n")
    # An empty list of what is installed: so the whole closure comes along, and nothing of the machine's is used.
    (apt / "var/lib/dpkg/status").write_text("")
    get = ["apt-get", "-o", f"Dir={apt}", "-o", f"Dir::State::status={apt / 'var/lib/dpkg/status'}"]
    get += [
        "-o",
        "APT::Install-Recommends=false",
        "-o",
        "APT::Sandbox::User=root",
        "-o",
        "Debug::NoLocking=1",
        "-qq",
    ]
    _run([*get, "update"])
    _run([*get, "-y", "--download-only", "install", name])
    root.mkdir(parents=True)
    for archive in sorted((apt / "var/cache/apt/archives").glob("*.deb")):
        _run(["dpkg-deb", "-x", str(archive), str(root)])
    shutil.rmtree(apt, ignore_errors=True)


def _mirror() -> str:
    """Where this machine gets its own packages from."""
    folder = Path("/etc/apt/sources.list.d")
    files = [Path("/etc/apt/sources.list"), *(sorted(folder.iterdir()) if folder.is_dir() else [])]
    found = _MIRROR.search("\n".join(file.read_text(errors="replace") for file in files if file.is_file()))
    if found is None or not _KEYRING.exists():
        raise ServerUnavailable("this machine names no Debian mirror of its own, or lacks debian-archive-keyring")
    return found.group(1)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=FETCH_SECONDS)


def _said(error: Exception) -> str:
    told = getattr(error, "stderr", b"") or b""
    return f"{error} {told.decode(errors='replace').strip()[-500:]}".strip()


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Two runs that start at the same moment fetch it once."""
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
