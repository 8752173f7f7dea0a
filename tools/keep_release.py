"""Keep a release for the tests of mixed releases (tests/releases/): its package, out of git, as one small file.

python tools/keep_release.py REV        writes tests/releases/REV.tar.xz (REV: a commit or a tag, as it is to be called)

The file depends on nothing but what it is made of: the same revision gives the same bytes.
"""

from __future__ import annotations

import io
import lzma
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "releases"
PACKAGE = "src/retrysafe"


def archived(revision: str) -> bytes:
    """The package's files at that revision, as git's own tar."""
    command = ["git", "archive", "--format=tar", revision, PACKAGE]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60)
    if found.returncode != 0:
        sys.exit(f"git has no {PACKAGE} at {revision!r}: {found.stderr.decode().strip()}")
    return found.stdout


def packed(archive: bytes) -> bytes:
    """Without what differs from one clone to the next: owners, times, git's own header."""
    made = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as given, tarfile.open(fileobj=made, mode="w") as kept:
        for member in sorted(given.getmembers(), key=lambda each: each.name):
            if member.isfile():
                content = given.extractfile(member)
                assert content is not None, "a file has content"
                plain = tarfile.TarInfo(member.name.removeprefix("src/"))
                plain.size = member.size
                kept.addfile(plain, content)
    return lzma.compress(made.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main(revision: str) -> None:
    target = FOLDER / f"{revision.replace('/', '-')}.tar.xz"
    target.write_bytes(packed(archived(revision)))
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
