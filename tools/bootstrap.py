"""Make `.venv` from a hashed lock, with nothing but python3 and pip.

    python3 tools/bootstrap.py test      # everything the suite and the checks need
    python3 tools/bootstrap.py demo      # only what `make demo` serves with
    python3 tools/bootstrap.py arq       # `.tools/arq`: arq wants an older redis than the rest; `test` makes it too

uv is put into `.tools/` with pip (no root, no venv module, allowed under PEP 668), makes the
environment and installs exactly what `requirements/<name>.lock` names. Running it again is
cheap: a stamp records which lock and which interpreter the environment was made from.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools"
VENV = ROOT / ".venv"
UV = TOOLS / "bin" / "uv"
UV_VERSION = "0.13.7"
ASIDE = {"arq": TOOLS / "arq"}
"""Environments for what cannot live with the rest; they run our source by PYTHONPATH."""


def main(name: str) -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is run by whatever python3 the machine has
        sys.exit(f"retrysafe needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}")
    if name in ASIDE:
        provide(name, ASIDE[name])
        return
    # The test lock is a superset of the demo's: an environment made for tests serves the demo too.
    provide(name, VENV, serves=(name, "demo"), package=True)
    if name == "test":
        for each, folder in ASIDE.items():
            provide(each, folder)


def provide(name: str, folder: Path, *, serves: tuple[str, ...] = (), package: bool = False) -> None:
    """Make one environment from its lock, unless it was made from it before."""
    lock = ROOT / "requirements" / f"{name}.lock"
    stamp = folder / ".stamp"
    if (folder / "bin" / "python").exists() and stamp.exists() and fingerprint(lock) in stamp.read_text().split():
        return
    print(f"setting up {folder.relative_to(ROOT)} from requirements/{lock.name} (once)", flush=True)
    env = environment()
    if not UV.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check"]
        run([*pip, "--root-user-action=ignore", "--target", str(TOOLS), f"uv=={UV_VERSION}"], os.environ)
    python = str(folder / "bin" / "python")
    if not Path(python).exists():
        run([str(UV), "venv", "-q", "--clear", "--python", sys.executable, str(folder)], env)
    run([str(UV), "pip", "sync", "-q", "--python", python, "--require-hashes", str(lock)], env)
    if package:
        build = ["--no-deps", "--no-build-isolation", "--python", python, "-e", str(ROOT)]
        run([str(UV), "pip", "install", "-q", *build], env)
    stamps = [fingerprint(ROOT / "requirements" / f"{each}.lock") for each in {*serves, name}]
    stamp.write_text("\n".join(stamps))


def fingerprint(lock: Path) -> str:
    """What an environment was made from: the lock, the package's metadata, the interpreter."""
    parts = [lock.read_bytes(), (ROOT / "pyproject.toml").read_bytes(), sys.version.encode(), str(ROOT).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def environment() -> dict[str, str]:
    """uv's settings: the system's certificates, the machine's own package index, no downloads of Python."""
    env = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
    env.setdefault("UV_CACHE_DIR", str(TOOLS / "cache"))
    env.setdefault("UV_LINK_MODE", "copy")
    index = os.environ.get("PIP_INDEX_URL") or pip_setting("global.index-url")
    if index:
        env.setdefault("UV_DEFAULT_INDEX", index)  # uv does not read pip's configuration
    return env


def pip_setting(name: str) -> str:
    python = getattr(sys, "_base_executable", sys.executable)  # asked from within .venv, which has no pip
    got = subprocess.run([python, "-m", "pip", "config", "get", name], capture_output=True, text=True)
    return got.stdout.strip() if got.returncode == 0 else ""


def run(command: list[str], env: os._Environ[str] | dict[str, str]) -> None:
    done = subprocess.run(command, env=dict(env))
    if done.returncode:
        sys.exit(f"set-up failed (exit {done.returncode}): {' '.join(command)}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "test")
