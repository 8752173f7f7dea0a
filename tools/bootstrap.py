"""Make `.venv` from a hashed lock file. Only python3 and pip are needed.

    python3 tools/bootstrap.py test      # everything that the tests and the checks need
    python3 tools/bootstrap.py demo      # only what `make demo` needs
    python3 tools/bootstrap.py arq       # `.tools/arq`: arq needs an older redis-py than the rest; `test` makes it too
    python3 tools/bootstrap.py docs      # `.tools/docs`: what `make docs` builds the site with; `test` makes it too
    python3 tools/bootstrap.py lock      # write the lock files anew (`make lock`)

pip installs uv into `.tools/` (without root and without the venv module, as PEP 668 allows). uv makes the environment
and installs exactly the packages of `requirements/<name>.lock`. A second run is cheap: a stamp file records the lock
file and the interpreter that the environment was made from. The lock files hold no registry address, so they work with
any mirror.
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
DISTRIBUTIONS = sorted(path.parent for path in (ROOT / "distributions").glob("*/pyproject.toml"))
"""Our other packages. They are installed with the main one, so that tests and type checks cover them."""
UV = TOOLS / "bin" / "uv"
UV_VERSION = "0.13.7"
SEPARATE_ENVIRONMENTS = {"arq": TOOLS / "arq", "docs": TOOLS / "docs"}
"""For packages that conflict with the rest, and for the site builder. They run our source through PYTHONPATH."""
LOCKS = ("demo", "test", "arq", "docs")
COMPILE_OPTIONS = (
    *("--universal", "--python-version", "3.11", "--generate-hashes"),
    *("--no-header", "--no-annotate", "--upgrade"),
)


def main(name: str) -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - any python3 of the machine may run this file
        sys.exit(f"retrysafe needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}")
    if name == "lock":
        write_locks()
        return
    if name in SEPARATE_ENVIRONMENTS:
        make_environment(name, SEPARATE_ENVIRONMENTS[name])
        return
    # The test lock is a superset of the demo lock, so the test environment can run the demo too.
    make_environment(name, VENV, serves=(name, "demo"), package=True)
    if name == "test":
        for each, folder in SEPARATE_ENVIRONMENTS.items():
            make_environment(each, folder)


def make_environment(name: str, folder: Path, *, serves: tuple[str, ...] = (), package: bool = False) -> None:
    """Make one environment from its lock file. Does nothing if the stamp shows that it is up to date."""
    lock = ROOT / "requirements" / f"{name}.lock"
    stamp = folder / ".stamp"
    if (folder / "bin" / "python").exists() and stamp.exists() and fingerprint(lock) in stamp.read_text().split():
        return
    print(f"setting up {folder.relative_to(ROOT)} from requirements/{lock.name} (once)", flush=True)
    env = build_uv_environ()
    if not UV.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check"]
        run([*pip, "--root-user-action=ignore", "--target", str(TOOLS), f"uv=={UV_VERSION}"], os.environ)
    python = str(folder / "bin" / "python")
    if not Path(python).exists():
        run([str(UV), "venv", "-q", "--clear", "--python", sys.executable, str(folder)], env)
    run([str(UV), "pip", "sync", "-q", "--python", python, "--require-hashes", str(lock)], env)
    if package:
        editable = [part for source in (ROOT, *DISTRIBUTIONS) for part in ("-e", str(source))]
        build = ["--no-deps", "--no-build-isolation", "--python", python, *editable]
        run([str(UV), "pip", "install", "-q", *build], env)
        say_if_not_compiled(python)
    stamps = [fingerprint(ROOT / "requirements" / f"{each}.lock") for each in {*serves, name}]
    stamp.write_text("\n".join(stamps))


def say_if_not_compiled(python: str) -> None:
    """The C part of retrysafe-speedups is optional. A machine without a compiler runs everything else."""
    if subprocess.run([python, "-c", "import retrysafe_speedups"], capture_output=True).returncode:
        print(
            "NOT BUILT: the C part of retrysafe-speedups needs a C compiler (cc) and Python's headers (python3-dev). "
            "retrysafe works without it; the tests of that part are skipped, or fail if CI=true.",
            flush=True,
        )


def fingerprint(lock: Path) -> str:
    """A hash of everything that an environment is made from: lock file, metadata and C sources of our packages,
    interpreter."""
    metadata = [(source / "pyproject.toml").read_bytes() for source in (ROOT, *DISTRIBUTIONS)]
    compiled = [path.read_bytes() for source in DISTRIBUTIONS for path in sorted(source.glob("c/*"))]
    parts = [lock.read_bytes(), *metadata, *compiled, sys.version.encode(), str(ROOT).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def build_uv_environ() -> dict[str, str]:
    """The environment variables for uv: the system's certificates, the machine's package index, no downloads of
    Python."""
    env = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
    env.setdefault("UV_CACHE_DIR", str(TOOLS / "cache"))
    env.setdefault("UV_LINK_MODE", "copy")
    index = os.environ.get("PIP_INDEX_URL") or read_pip_setting("global.index-url")
    if index:
        env.setdefault("UV_DEFAULT_INDEX", index)  # uv does not read pip's configuration
    return env


def read_pip_setting(name: str) -> str:
    python = getattr(sys, "_base_executable", sys.executable)  # this may run inside .venv, which has no pip
    result = subprocess.run([python, "-m", "pip", "config", "get", name], capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else ""


def write_locks() -> None:
    """Resolve `requirements/*.in` anew. Needs an environment, for uv."""
    for name in LOCKS:
        source, lock = f"requirements/{name}.in", f"requirements/{name}.lock"
        run([str(UV), "pip", "compile", "-q", source, "-o", lock, *COMPILE_OPTIONS], build_uv_environ())
        print(f"{lock}: {(ROOT / lock).read_text().count('==')} packages")


def run(command: list[str], env: os._Environ[str] | dict[str, str]) -> None:
    result = subprocess.run(command, env=dict(env))
    if result.returncode:
        sys.exit(f"set-up failed (exit {result.returncode}): {' '.join(command)}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "test")
