"""An environment for other people's packages (`.tools/peers`), made on demand.

They are not in the test lock: what they depend on must not decide what we are tested with. The web applications, ours
and bare ones included, all run in it, so that everybody has the same framework and drivers. Where a package cannot be
had, the results say so and nothing is claimed about it.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SPEEDUPS = ROOT / "distributions" / "retrysafe-speedups"
SPEEDUPS_SWITCH = "RETRYSAFE_SPEEDUPS"
"""The variable that leaves them out if it is `off`. They are installed for the rows that ask for them."""
HOME = ROOT / ".tools" / "peers"
PYTHON = HOME / "bin" / "python"

COMMON = (
    *("fastapi", "uvicorn", "uvloop", "httptools", "redis[hiredis]", "psycopg[binary]", "psycopg-pool", "asyncpg"),
    *("aiosqlite", "django<5.3", "djangorestframework", "gunicorn"),
)
PEERS = {
    "idemkit": ("idemkit",),
    "fastapi-idempotency-key": ("fastapi-idempotency-key",),
    "aws-lambda-powertools": ("aws-lambda-powertools[aws-sdk]", "jmespath"),
    "idempotency-kit": ("idempotency-kit[redis]",),
    "fastapi-idempotency": ("fastapi-idempotency[tortoise]",),
    "drf-idempotency": ("drf-idempotency[redis]",),
}


@dataclass
class Environment:
    """Which interpreter serves the applications, and which packages it lacks, with the reason."""

    python: str
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def notes(self) -> list[str]:
        had = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lacks = [f"{name} was not run, it could not be installed: {why}" for name, why in self.missing.items()]
        return ([f"versions: {had}"] if had else []) + lacks


def environment() -> Environment:
    """Made if it is not there. Without a package index it is our own environment, and no peers."""
    uv, env = _uv()
    if not PYTHON.exists():
        _ran([uv, "venv", "-q", "--python", sys.executable, str(HOME)], env)
    install = [uv, "pip", "install", "-q", "--python", str(PYTHON)]
    why = _ran([*install, *COMMON, str(SPEEDUPS)], env)
    if why:
        print(f"PEERS WERE NOT RUN: {why}", file=sys.stderr)
        return Environment(sys.executable, dict.fromkeys(PEERS, why))
    missing = {}
    if _ran([*install, *(package for packages in PEERS.values() for package in packages)], env):
        # Not all together: those that can be had one by one, each beside what is there already.
        missing = {name: why for name, packages in PEERS.items() if (why := _ran([*install, *packages], env))}
    return Environment(str(PYTHON), missing, _versions(missing))


def _uv() -> tuple[str, dict[str, str]]:
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "tools" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    bootstrap: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    return str(bootstrap.UV), bootstrap.build_uv_environ()


def _ran(command: list[str], env: dict[str, str]) -> str:
    """Why it failed, or nothing. The reason goes into a published file: its last line, without addresses."""
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    except OSError as error:
        return type(error).__name__
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip() and "://" not in line]
    return "" if done.returncode == 0 else (lines[-1] if lines else f"exit {done.returncode}").replace(str(ROOT), ".")


def _versions(missing: dict[str, str]) -> dict[str, str]:
    names = ["fastapi", "uvicorn", "django", *(name for name in PEERS if name not in missing)]
    code = "import sys, importlib.metadata as m\nfor name in sys.argv[1:]: print(m.version(name))"
    done = subprocess.run([str(PYTHON), "-c", code, *names], capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.split(), strict=True))
