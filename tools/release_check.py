"""Build wheels and sdists, install each into an empty environment on every Python that is found, and test them.

    python tools/release_check.py            run before a release (`make release-check`)

It looks for Pythons on the path and among pyenv's. A version in the classifiers that was not tested is an error: remove
it from the classifiers, or run this on a machine that has it. The other distributions (distributions/) are built,
installed together with the wheel of the main package, and tested in the same way.
"""

from __future__ import annotations

import argparse
import email.parser
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = sorted(path.parent for path in (ROOT / "distributions").glob("*/pyproject.toml"))
SMOKE = Path(__file__).with_name("release_smoke.py")
EXTRAS = ("fastapi", "flask", "redis", "postgres", "mysql", "mongodb", "httpx", "requests", "testing")
REQUIRED_URLS = {"Documentation", "Source", "Issues", "Changelog"}
CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)$", re.MULTILINE)


def find_pythons(versions: Sequence[str]) -> dict[str, str]:
    """A working Python interpreter for each version. A version without one is left out."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in versions:
        candidates = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
        for each in candidates:
            if each and _has_version(each, version):
                found[version] = each
                break
    return found


def _has_version(python: str, version: str) -> bool:
    """Run the interpreter: a pyenv shim may be on the path without an interpreter behind it."""
    result = subprocess.run([python, "--version"], capture_output=True, text=True)
    return result.returncode == 0 and result.stdout.startswith(f"Python {version}.")


def build(builder: str, source: Path, folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist of one project. `builder` is a Python that has the package `build`."""
    subprocess.run([builder, "-m", "build", "-q", "--outdir", str(folder), str(source)], check=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def list_problems(wheel: Path, sdist: Path) -> Iterator[str]:
    """The problems of the main package's wheel and sdist."""
    yield from list_metadata_problems(wheel, sdist)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    if any("extra" not in each for each in read_metadata(wheel).get_all("Requires-Dist", [])):
        yield "the wheel needs other packages: the core uses only the standard library"
    if any("mssql" in name for name in names):
        yield "the wheel has the SQL Server store: that belongs to the distribution retrysafe-mssql"
    for name in ("py.typed", "stores/sql/texts/release.sql", "stores/redis/scripts/claim.lua"):
        if f"retrysafe/{name}" not in names:
            yield f"{name} is not in the wheel"


def list_metadata_problems(wheel: Path, sdist: Path) -> Iterator[str]:
    """The problems that any package may have: missing project URLs in the wheel, missing files in the sdist."""
    urls = {each.partition(",")[0].strip() for each in read_metadata(wheel).get_all("Project-URL", [])}
    if missing := REQUIRED_URLS - urls:
        yield f"{wheel.name} has no Project-URL for {', '.join(sorted(missing))}: add it to [project.urls]"
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        if name not in inside:
            yield f"{name} is not in {sdist.name}"


def list_compiled_problems(source: Path, wheel: Path) -> Iterator[str]:
    """A C part is optional where it is built. The wheel of a release has it, and fits every Python from 3.11 on."""
    if not (source / "c").is_dir():
        return
    with zipfile.ZipFile(wheel) as archive:
        if not any(".abi3." in name for name in archive.namelist()):
            yield f"{wheel.name} has no C part: build it on a machine with a C compiler and Python's headers"
    if "-cp311-abi3-" not in wheel.name:
        yield f"{wheel.name} is not tagged cp311-abi3: it would fit one Python only"


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
    return email.parser.Parser().parsestr(text)


def make_environment(python: str, folder: Path, packages: Sequence[str]) -> str:
    """Make a virtual environment with these packages. Returns its Python."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inner = str(folder / "bin" / "python")
    subprocess.run([inner, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages], check=True)
    return inner


def smoke_test(python: str, package: str, extras: Sequence[str], folder: Path, others: Sequence[str] = ()) -> None:
    """Install the package with its extras, and `others`, into an empty environment, and run the smoke test."""
    requirement = f"{package}[{','.join(extras)}]" if extras else package
    inner = make_environment(python, folder, [requirement, *others])
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    names = [Path(each).name.partition("-")[0] for each in others]
    subprocess.run([inner, "-I", str(SMOKE), *extras, *names], check=True, cwd=folder, env=clean, timeout=600)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-extras", action="store_true", help="test only the wheel and the sdist, without extras")
    args = parser.parse_args()
    versions = CLASSIFIER.findall((ROOT / "pyproject.toml").read_text().replace('",', ""))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        builder = make_environment(sys.executable, folder / "build-env", ["build"])
        wheel, sdist = build(builder, ROOT, folder / "dist")
        problems = list(list_problems(wheel, sdist))
        others = []
        for source in DISTRIBUTIONS:
            other_wheel, other_sdist = build(builder, source, folder / source.name)
            problems += list_metadata_problems(other_wheel, other_sdist)
            problems += list_compiled_problems(source, other_wheel)
            others.append(other_wheel)
        pythons = find_pythons(versions)
        problems += [
            f"no Python {each} was found to test it: install it, or remove it from the classifiers"
            for each in versions
            if each not in pythons
        ]
        for version, python in pythons.items():
            smoke_test(python, str(wheel), (), folder / f"wheel-{version}")
            smoke_test(python, str(sdist), (), folder / f"sdist-{version}")
            if not args.no_extras:
                smoke_test(python, str(wheel), EXTRAS, folder / f"extras-{version}")
                smoke_test(python, str(wheel), (), folder / f"distributions-{version}", [str(each) for each in others])
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"tested on {', '.join(pythons)}: {', '.join(each.name for each in (wheel, sdist, *others))}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
