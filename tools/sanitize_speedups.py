"""Fuzz the compiled helper in a build with AddressSanitizer and UndefinedBehaviorSanitizer (gcc or clang).

    python tools/sanitize_speedups.py --count 1000000 [--seed 7]

The build is a temporary one. The fuzzer is that of tools/fuzz.py, group `speedups`; the first report of a sanitizer
ends the run. Python itself allocates by malloc here, so that each buffer has its own bounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "distributions" / "retrysafe-speedups"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g")
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion", "-Werror", "-DON_STACK_BYTES=1")
LIBRARIES = ("libasan.so", "libubsan.so")


def build(compiler: str, folder: Path) -> None:
    """A copy of the package with a sanitized C part."""
    package = folder / "retrysafe_speedups"
    package.mkdir()
    for path in (SOURCE / "src" / "retrysafe_speedups").glob("*.py"):
        shutil.copy(path, package)
    include = f"-I{sysconfig.get_path('include')}"
    sources = sorted(map(str, (SOURCE / "c").glob("*.c")))
    out = ["-o", str(package / "_speedups.abi3.so")]
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", *SANITIZERS, *STRICT, include, *sources, *out], check=True)


def find_library(compiler: str, name: str) -> str:
    found = subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("there is no C compiler (cc) to build the compiled helper with")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(compiler, folder)
        environ = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "PYTHONMALLOC": "malloc",
            "LD_PRELOAD": " ".join(find_library(compiler, each) for each in LIBRARIES),
            "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",  # an interpreter that ends leaves much behind
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        fuzzer = [sys.executable, "-c", RUN, str(folder), str(args.count), str(args.seed)]
        return subprocess.run(fuzzer, env=environ, cwd=ROOT).returncode


RUN = """
import sys
sys.path.insert(1, "")
import retrysafe_speedups
from tools import fuzz
folder, count, seed = sys.argv[1:]
assert retrysafe_speedups.__file__.startswith(folder), retrysafe_speedups.__file__
for target in fuzz.GROUPS["speedups"]:
    print(f"sanitized {target}: {fuzz.fuzz(target, int(count), int(seed))} accepted and refused", flush=True)
"""


if __name__ == "__main__":
    sys.exit(main())
