"""A third party's store (examples/folder_store), accepted as theirs would be: the contract suite, a race between
processes, and its scheme found through the metadata of an installed package."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.folder_store.store import AsyncFolderStore, FolderStore

from retrysafe import RetrySafe, open_store
from retrysafe.core.states import State
from retrysafe.stores.diagnosis import diagnose
from retrysafe.testing import Do
from retrysafe.testing.builders import claim, complete
from retrysafe.testing.contract.claim import *  # noqa: F403
from retrysafe.testing.contract.expiry import *  # noqa: F403
from retrysafe.testing.contract.fence import *  # noqa: F403
from retrysafe.testing.contract.forget import *  # noqa: F403
from retrysafe.testing.contract.identity import *  # noqa: F403
from retrysafe.testing.contract.late import *  # noqa: F403
from retrysafe.testing.contract.listing import *  # noqa: F403
from retrysafe.testing.contract.many import *  # noqa: F403
from retrysafe.testing.contract.resume import *  # noqa: F403
from retrysafe.testing.contract.settle import *  # noqa: F403

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def do(tmp_path: Path) -> Iterator[Do]:
    opened = Do.sync(FolderStore(tmp_path / "keys"))
    yield opened
    opened.close()


def test_the_async_colour_is_the_same_store(tmp_path: Path) -> None:
    """Two lines around the sync one: what it does is proven there, that it does it is shown here."""
    do = Do.asynchronous(AsyncFolderStore(FolderStore(tmp_path)))
    held = do(claim("k", now=0))
    assert [reply.granted for reply in do.many([claim("k", now=1), claim("other", now=1)])] == [False, True]
    assert do(complete(held, b"done", now=2)) is True
    assert do.record(held).state is State.COMPLETED
    do.close()


RACER = """
import sys
from pathlib import Path
from examples.folder_store.store import FolderStore
from retrysafe.testing.builders import claim, complete

store = FolderStore(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for key in range(int(sys.argv[2])):
    if store.execute(claim(f"k{key}", now=0)).granted:
        print(key, flush=True)
"""


def test_i1_between_processes_each_key_is_granted_once(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path / "keys"), "50"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    told = [racer.communicate("go\n", timeout=120)[0].split() for racer in racers]
    granted = Counter(int(key) for keys in told for key in keys)
    assert granted == Counter(range(50))


def test_a_record_survives_and_an_unfinished_write_does_not_hurt(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    held = store.execute(claim("k", now=0))
    assert held.record is not None
    (tmp_path / f"{held.record.id.hex()}.new").write_text('{"id": "cut o')
    assert FolderStore(tmp_path).execute(claim("k", now=1)).granted is False


def test_its_scheme_is_found_through_the_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site" / "folder_store-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: folder-store\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[retrysafe.stores]\nfolder = examples.folder_store.store:backend\n")
    monkeypatch.syspath_prepend(str(installed.parent))
    url = f"folder://{tmp_path}/keys"
    assert open_store(url).migrate() == ["created keys"]
    assert diagnose(url).label == "exactly-once-capable"

    sent: list[int] = []
    with RetrySafe(url) as safe:

        @safe.once("receipt:{order}")
        def receipt(order: int) -> str:
            sent.append(order)
            return f"receipt {order}"

        assert [receipt(7), receipt(7)] == ["receipt 7", "receipt 7"]
    assert sent == [7]
