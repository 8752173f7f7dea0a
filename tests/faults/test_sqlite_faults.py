"""SQLite when the disk is full, the file is taken, or the process dies in the middle of a system call."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from retrysafe.core.states import State
from retrysafe.errors import StoreUnavailable
from retrysafe.testing import Do
from retrysafe.testing.builders import claim, complete, lookup
from tests.faults.sqlite_story import ANSWER, asked, done
from tests.opening import COLOURS, open_do, open_migrated, with_option

pytestmark = pytest.mark.store("sqlite")

each_colour = pytest.mark.parametrize("colour", COLOURS)
ROOT = Path(__file__).parents[2]
DEADLINE = 60


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False)


def intact(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


# No room ------------------------------------------------------------------------------------------

FILL = """
import json, resource, sys
from pathlib import Path
from retrysafe.errors import StoreOutage
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, complete, lookup

path = sys.argv[1]
store = open_store(f"sqlite:///{path}")
held = store.execute(claim("first", now=None))
room = sum(Path(path + end).stat().st_size for end in ("", "-wal"))
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (room + 64 * 1024, hard))
granted, error = [], None
for number in range(10_000):
    op = claim(str(number), input=b"x" * 8000, now=None)
    try:
        assert store.execute(op).granted
    except StoreOutage as found:
        error = found
        break
    granted.append(number)
assert error is not None, "the limit was never met"
for _ in range(3):  # still no room: the same answer, and nothing stuck
    try:
        store.execute(claim("again", input=b"x" * 8000, now=None))
    except StoreOutage:
        pass
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert store.execute(op).granted, "sent again when there is room"
assert store.execute(complete(held, now=None)) is True
for number in granted:
    assert store.execute(lookup(str(number), now=None)).record is not None
store.close()
print(json.dumps([type(error).__name__, str(error), len(granted)]))
"""


def test_the_file_may_not_grow(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: writing beyond it fails as on a broken or full disk. Nothing granted is lost, nothing is stuck."""
    ended = run(FILL, str(tmp_path / "full.db"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "full.db" in ended.stdout
    intact(tmp_path / "full.db")


@each_colour
def test_no_more_pages(tmp_path: Path, colour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """max_page_count makes SQLite itself say "disk full"; it is a setting of each connection."""
    connect = sqlite3.connect

    def small(*args: object, **kwargs: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)  # type: ignore[call-overload]  # passed through
        connection.execute("PRAGMA max_page_count = 40")
        return connection

    path = tmp_path / "small.db"
    open_migrated(f"sqlite:///{path}", "sync").close()
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", small)
        do = open_do(f"sqlite:///{path}", colour)
        try:
            first = do(claim("first", now=None))
            with pytest.raises(StoreUnavailable, match=r"disk is full.*Make room"):
                fill(do)
            assert do(lookup("first", now=None)).record == first.record
            with pytest.raises(StoreUnavailable, match="disk is full"):
                do.many([claim("batch", input=b"x" * 300_000, now=None)])
            assert do(lookup("batch", now=None)).record is None
        finally:
            do.close()
    do = open_do(f"sqlite:///{path}", colour)
    try:
        assert do(complete(first, now=None)) is True
        assert do(claim("batch", input=b"x" * 300_000, now=None)).granted is True
    finally:
        do.close()
    intact(path)


def fill(do: Do) -> None:
    for number in range(1000):
        do(claim(str(number), input=b"x" * 8000, now=None))


# Taken --------------------------------------------------------------------------------------------

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
connection.close()
"""


@contextmanager
def held_by_another_process(path: Path) -> Iterator[None]:
    command = [sys.executable, "-c", HOLD, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.communicate("let go\n", timeout=DEADLINE)
    finally:
        process.kill()
        process.communicate()


@each_colour
def test_held_for_longer_than_the_timeout(tmp_path: Path, colour: str) -> None:
    path = tmp_path / "held.db"
    do = open_migrated(with_option(f"sqlite:///{path}", "timeout", "0.2"), colour)
    try:
        held = do(claim("mine", now=None))
        with held_by_another_process(path):
            for op in (claim("k", now=None), complete(held, now=None)):
                with pytest.raises(StoreUnavailable, match=r"held\.db: another writer.*timeout="):
                    do(op)
            with pytest.raises(StoreUnavailable, match="another writer"):
                do.many([claim("k", now=None)])
            # Readers do not wait for a writer: a replay or a look costs it nothing.
            assert do(lookup("mine", now=None)).record == held.record
        assert do(complete(held, now=None)) is True
        assert do(claim("k", now=None)).granted is True
    finally:
        do.close()


@each_colour
def test_held_while_it_is_opened(tmp_path: Path, colour: str) -> None:
    path = tmp_path / "held.db"
    sqlite3.connect(path).close()
    do = open_do(with_option(f"sqlite:///{path}", "timeout", "0.2"), colour)
    try:
        with held_by_another_process(path), pytest.raises(StoreUnavailable, match="another writer"):
            do(claim("k", now=None))
        assert do(claim("k", now=None)).granted is True
    finally:
        do.close()


# Not a file for us --------------------------------------------------------------------------------


def refused(url: str, colour: str) -> str:
    do = open_do(url, colour)
    try:
        with pytest.raises(StoreUnavailable) as caught:
            do(claim("k", now=None))
        with pytest.raises(StoreUnavailable):
            do.many([claim("k", now=None)])
    finally:
        do.close()
    return str(caught.value)


@each_colour
def test_a_folder(tmp_path: Path, colour: str) -> None:
    assert "is a folder; point the URL at a file in it" in refused(f"sqlite:///{tmp_path}", colour)


@each_colour
def test_not_a_database(tmp_path: Path, colour: str) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("Dear diary, " * 500)
    assert "is not an SQLite database; point the URL at another file" in refused(f"sqlite:///{other}", colour)
    assert other.read_text().startswith("Dear diary"), "what is not ours is left alone"


@each_colour
def test_a_file_where_a_folder_should_be(tmp_path: Path, colour: str) -> None:
    (tmp_path / "file").write_text("")
    message = refused(f"sqlite:///{tmp_path}/file/app.db", colour)
    assert "cannot be made" in message
    assert "point the URL elsewhere" in message


READ_ONLY = """
import functools, os, sys
from retrysafe.errors import StoreOutage
from retrysafe.stores.registry import open_store
from retrysafe.stores.sql import dialect, migrations
from retrysafe.testing.builders import claim

if os.getuid() == 0:
    # Root may write anything, so become nobody; who may perhaps not read our sources, so read them all before.
    dialect._read = functools.cache(dialect._read)
    migrations.load_migrations = functools.cache(migrations.load_migrations)
    warm = open_store(f"sqlite:///{sys.argv[3]}")
    warm.execute(claim("k", now=None))
    warm.close()
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
try:
    open_store(f"sqlite:///{sys.argv[1]}").execute(claim("k", now=None))
except StoreOutage as error:
    print(error)
"""


def test_a_read_only_file(tmp_path: Path) -> None:
    # Not pytest's own folder: that is closed to everybody else, and here somebody else looks at it.
    folder = Path(tempfile.mkdtemp(prefix="retrysafe-readonly-"))
    try:
        path = folder / "app.db"
        open_migrated(f"sqlite:///{path}", "sync").close()
        path.chmod(0o444)
        folder.chmod(0o555)
        ended = run(READ_ONLY, str(path), str(pwd.getpwnam("nobody").pw_uid), str(tmp_path / "warm.db"))
        assert ended.stderr == ""
        assert re.search(r"app\.db: (is read-only|cannot be opened).*(permissions|writable)", ended.stdout)
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


# Killed in the middle of a system call ------------------------------------------------------------


class Injected(NamedTuple):
    """What happens at the n-th call of a system call on the database's files."""

    call: str
    number: int
    fault: str
    lasting: bool = False

    def __str__(self) -> str:
        return f"inject={self.call}:{self.fault}:when={self.number}{'+' if self.lasting else ''}"


def strace(path: Path, *more: str) -> list[str]:
    files = [part for end in ("", "-wal", "-shm", "-journal") for part in ("-P", f"{path}{end}")]
    return ["strace", "-f", "-qq", *files, *more]


@cache
def why_no_strace() -> str:
    if shutil.which("strace") is None:
        return "strace is not installed on this machine"
    try:
        probe = subprocess.run(
            ["strace", "-qq", "-o", os.devnull, "true"], capture_output=True, timeout=DEADLINE, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"strace does not run here: {error}"
    return "" if probe.returncode == 0 else f"strace may not trace here: {probe.stderr.decode().strip()}"


@pytest.fixture
def traced() -> None:
    if why_no_strace():
        print(why_no_strace())
        pytest.skip(why_no_strace())


def story(path: Path, token: str, *prefix: str) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "tests.faults.sqlite_story", str(path), token]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False)


def calls_of(path: Path, names: str) -> Counter[str]:
    """How often the story makes each system call on its files."""
    log = path.with_suffix(".log")
    ended = story(path, secrets.token_hex(16), *strace(path, "-o", str(log), "-e", f"trace={names}"))
    assert ended.stdout.split() == ["claimed", "completed"], ended.stderr
    found = Counter(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE))
    assert found
    return found


def fresh(path: Path, migrated: bool) -> Path:
    if migrated:
        open_migrated(f"sqlite:///{path}", "sync").close()
    return path


def struck(path: Path, injected: Injected) -> list[str]:
    """The story with a fault in it, and then the recovery. Returns what the process was told before it went."""
    token = secrets.token_hex(16)
    what = f"trace={injected.call}"
    ended = story(path, token, *strace(path, "-o", os.devnull, "-e", what, "-e", str(injected)))
    told = ended.stdout.split()
    if "SIGKILL" in injected.fault:
        assert ended.returncode == -signal.SIGKILL, f"{injected} never struck: {ended.stderr}"
    else:
        assert ended.returncode == 0, f"{injected}: {ended.stderr}"
    recovers(path, token, told)
    return told


def recovers(path: Path, token: str, told: list[str]) -> None:
    """What was acknowledged is there, what was not is found out, and the story ends as if nothing had been."""
    op = asked(token)
    do = open_migrated(f"sqlite:///{path}", "sync")
    try:
        found = do(lookup(op, now=None)).record
        if "claimed" in told:
            assert found is not None, "an acknowledged claim was lost"
            assert found.fence == (1, op.token)
        if "completed" in told:
            assert found is not None
            assert found.state is State.COMPLETED
        if told == ["StoreUnavailable"]:
            assert found is None, "refused as not done, yet it was"
        again = do(op)
        assert again.granted is (found is None or found.state is State.CLAIMED)
        assert again.record is not None
        assert again.record.fence == (1, op.token)
        assert do(done(op)) is True
        rival = do(claim(op.key, now=None))
        assert rival.granted is False
        assert rival.record is not None
        assert rival.record.answer == ANSWER
    finally:
        do.close()
    intact(path)


def strike_each(tmp_path: Path, faults: list[Injected], *, migrated: bool) -> list[list[str]]:
    paths = [fresh(tmp_path / f"{number}.db", migrated) for number in range(len(faults))]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(struck, paths, faults))


def each_call(counts: Counter[str], fault: str, *, lasting: bool = False) -> list[Injected]:
    return [Injected(call, n, fault, lasting) for call in sorted(counts) for n in range(1, counts[call] + 1)]


WRITES = "pwrite64,fdatasync,fsync,ftruncate"
EVERYTHING = f"{WRITES},fcntl,openat,unlink,pread64"


@pytest.mark.usefixtures("traced")
def test_killed_at_every_write(tmp_path: Path) -> None:
    counts = calls_of(fresh(tmp_path / "count.db", True), WRITES)
    told = strike_each(tmp_path, each_call(counts, "signal=SIGKILL"), migrated=True)
    # Not vacuous: the kills fell before the claim, between claim and completion, and after.
    assert {tuple(each) for each in told} >= {(), ("claimed",)}


@pytest.mark.usefixtures("traced")
def test_no_space_at_every_write(tmp_path: Path) -> None:
    counts = calls_of(fresh(tmp_path / "count.db", True), "pwrite64")
    faults = each_call(counts, "error=ENOSPC") + each_call(counts, "error=ENOSPC", lasting=True)[:1]
    told = strike_each(tmp_path, faults, migrated=True)
    assert any("StoreUnavailable" in each for each in told)


@pytest.mark.usefixtures("traced")
def test_the_disk_fails_at_every_sync(tmp_path: Path) -> None:
    counts = calls_of(fresh(tmp_path / "count.db", True), "fdatasync,fsync")
    told = strike_each(tmp_path, each_call(counts, "error=EIO"), migrated=True)
    assert any("StoreUnclear" in each for each in told)


@pytest.mark.campaign
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("fault", ["signal=SIGKILL", "error=ENOSPC", "error=EIO"])
def test_everything_from_an_empty_file(tmp_path: Path, fault: str) -> None:
    """Creating the file and its tables included, at every system call on it."""
    names = EVERYTHING if "signal" in fault else WRITES
    counts = calls_of(tmp_path / "count.db", names)
    strike_each(tmp_path, each_call(counts, fault), migrated=False)
    if "error" in fault:
        lasting = each_call(counts, fault, lasting=True)
        (tmp_path / "lasting").mkdir()
        strike_each(tmp_path / "lasting", lasting, migrated=False)
