"""Build wheel and sdist, install each into empty environments on every Python there is, and try them.

    python tools/release_check.py            what `make release-check` runs before a release

Pythons are looked for on the path and among pyenv's. A version in the classifiers that was not tried is an error: it
leaves the classifiers, or a machine that has it runs this.
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
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SMOKE = Path(__file__).with_name("release_smoke.py")
EXTRAS = ("fastapi", "flask", "redis", "postgres", "mysql", "mongodb", "httpx", "requests", "testing")
REQUIRED_URLS = {"Documentation", "Source", "Issues", "Changelog"}
CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)$", re.MULTILINE)


def find_pythons(versions: Sequence[str]) -> dict[str, str]:
    """An interpreter for each version, where there is one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in versions:
        candidates = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
        for each in candidates:
            if each and _says_version(each, version):
                found[version] = each
                break
    return found


def _says_version(python: str, version: str) -> bool:
    """A shim may be on the path and lead nowhere."""
    told = subprocess.run([python, "--version"], capture_output=True, text=True)
    return told.returncode == 0 and told.stdout.startswith(f"Python {version}.")


def build(folder: Path) -> tuple[Path, Path]:
    maker = make_environment(sys.executable, folder / "build-env", ["build"])
    subprocess.run([maker, "-m", "build", "-q", "--outdir", str(folder / "dist"), str(ROOT)], check=True)
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


def list_metadata_problems(wheel: Path, sdist: Path) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        text = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    told = email.parser.Parser().parsestr(text)
    urls = {each.partition(",")[0].strip() for each in told.get_all("Project-URL", [])}
    if missing := REQUIRED_URLS - urls:
        yield f"the metadata has no Project-URL for {', '.join(sorted(missing))}: add it to [project.urls]"
    if any(not each.startswith("extra ==") and "extra" not in each for each in told.get_all("Requires-Dist", [])):
        yield "the wheel needs other packages: the core stands on the standard library alone"
    for name in ("py.typed", "stores/sql/texts/release.sql", "stores/redis/scripts/claim.lua"):
        if f"retrysafe/{name}" not in names:
            yield f"{name} is not in the wheel"
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        if name not in inside:
            yield f"{name} is not in the sdist"


def make_environment(python: str, folder: Path, packages: Sequence[str]) -> str:
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inner = str(folder / "bin" / "python")
    subprocess.run([inner, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages], check=True)
    return inner


def try_out(python: str, package: str, extras: Sequence[str], folder: Path) -> None:
    what = f"{package}[{','.join(extras)}]" if extras else package
    inner = make_environment(python, folder, [what])
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([inner, "-I", str(SMOKE), *extras], check=True, cwd=folder, env=clean, timeout=600)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-extras", action="store_true", help="only the wheel and the sdist by themselves")
    asked = parser.parse_args()
    versions = CLASSIFIER.findall((ROOT / "pyproject.toml").read_text().replace('",', ""))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sdist = build(folder)
        problems = list(list_metadata_problems(wheel, sdist))
        pythons = find_pythons(versions)
        problems += [
            f"no Python {each} was found to try it: install it, or take it out of the classifiers"
            for each in versions
            if each not in pythons
        ]
        for version, python in pythons.items():
            try_out(python, str(wheel), (), folder / f"wheel-{version}")
            try_out(python, str(sdist), (), folder / f"sdist-{version}")
            if not asked.no_extras:
                try_out(python, str(wheel), EXTRAS, folder / f"extras-{version}")
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"tried on {', '.join(pythons)}: {wheel.name}, {sdist.name}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
