"""The browser of tests/browser: the machine's chromium, or Debian's, unpacked under `.tools/` without root.

`RETRYSAFE_TEST_CHROMIUM` names another one. Chromium starts its own helper processes from its own path, so it cannot
run by a loader of another Debian: the package is that of the machine's own release, and the machine's libraries come
first.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.servers.base import ServerUnavailable
from tests.servers.debian import package


class Chromium(NamedTuple):
    path: str
    env: dict[str, str]


def find_chromium() -> Chromium:
    named = os.environ.get("RETRYSAFE_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if named:
        return Chromium(named, dict(os.environ))
    try:
        codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError as error:
        raise ServerUnavailable(
            f"no chromium on this machine, and it does not say which Debian it is: {error}"
        ) from error
    root = package(codename, "chromium").root
    libraries = os.pathsep.join([*_list_machine_libraries(), *_list_libraries(root)])
    return Chromium(str(root / "usr/lib/chromium/chromium"), {**os.environ, "LD_LIBRARY_PATH": libraries})


def _list_machine_libraries() -> Iterator[str]:
    for place in ("/lib", "/usr/lib"):
        yield from map(str, sorted(Path(place).glob("*-linux-gnu")))


def _list_libraries(root: Path) -> list[str]:
    """Every folder of the package with a library in it; PulseAudio keeps its own one level deeper."""
    bases = [*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu")]
    found = (library for base in bases for library in (*base.glob("*.so*"), *base.glob("*/*.so*")))
    return sorted({str(library.parent) for library in found})
