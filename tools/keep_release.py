"""Store the package of a release as one small file, for the tests of mixed releases (tests/releases/).

    python tools/keep_release.py REV        write tests/releases/REV.tar.xz; REV is a commit or a tag

The file is reproducible: the same revision gives the same bytes.
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


def read_archive(revision: str) -> bytes:
    """The files of the package at a revision, as a tar archive of git."""
    command = ["git", "archive", "--format=tar", revision, PACKAGE]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60)
    if result.returncode != 0:
        sys.exit(f"git has no {PACKAGE} at {revision!r}: {result.stderr.decode().strip()}")
    return result.stdout


def compress_archive(archive: bytes) -> bytes:
    """Compress the files, without owners, times and git's header, which differ from clone to clone."""
    output = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as source, tarfile.open(fileobj=output, mode="w") as target:
        for member in sorted(source.getmembers(), key=lambda each: each.name):
            if member.isfile():
                content = source.extractfile(member)
                assert content is not None, "a file has content"
                plain = tarfile.TarInfo(member.name.removeprefix("src/"))
                plain.size = member.size
                target.addfile(plain, content)
    return lzma.compress(output.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main(revision: str) -> None:
    target = FOLDER / f"{revision.replace('/', '-')}.tar.xz"
    target.write_bytes(compress_archive(read_archive(revision)))
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
