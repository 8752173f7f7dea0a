"""DuckDB's file belongs to one process: others are refused, also children of a fork, and none of them ruins it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from retrysafe import open_store
from retrysafe.core.states import State
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.diagnosis import diagnose
from retrysafe.testing.builders import claim, lookup

pytestmark = pytest.mark.store("duckdb")

ROOT = Path(__file__).parents[2]
DEADLINE = 120

HOLDER = """
import sys
from retrysafe import open_store
from retrysafe.testing.builders import claim
store = open_store(sys.argv[1])
print(store.execute(claim("theirs", now=0)).granted, flush=True)
sys.stdin.readline()
store.close()
"""


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_second_process_is_refused_and_told_what_to_do(duckdb_url: str) -> None:
    holder = python(HOLDER, duckdb_url)
    store = open_store(duckdb_url)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        with pytest.raises(StoreUnavailable) as told:
            store.execute(claim("mine", now=0))
        assert f"is open in process {holder.pid}" in str(told.value)
        assert "sqlite:///" in str(told.value)
        assert "postgresql://" in str(told.value)
        with pytest.raises(StoreUnavailable, match="DuckDB lets one process use a file"):
            diagnose(duckdb_url)
    finally:
        holder.communicate("go\n", timeout=DEADLINE)
    assert store.execute(claim("mine", now=0)).granted is True, "when it is closed there, it can be had here"
    assert store.execute(claim("theirs", now=0)).granted is False
    store.close()


FORKED = """
import json, os, sys
from retrysafe import open_store
from retrysafe.errors import StoreOutage
from retrysafe.testing.builders import claim, complete
url = sys.argv[1]
store = open_store(url)
for number in range(20):
    assert store.execute(claim(f"before{number}", now=0)).granted
read, write = os.pipe()
child = os.fork()
if child == 0:
    said = []
    for again in (store, open_store(url)):
        try:
            said.append(again.execute(claim("child", now=0)).granted)
        except StoreOutage as error:
            said.append(str(error))
    os.write(write, json.dumps(said).encode())
    sys.exit(0)  # to the very end of the interpreter: everything it inherited is thrown away
os.close(write)
said = os.read(read, 65536).decode()
os.waitpid(child, 0)
for number in range(20):
    assert store.execute(claim(f"after{number}", now=0)).granted
print(said, flush=True)
os.kill(os.getpid(), 9)  # nothing is closed: what counts is what was acknowledged
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_is_refused_and_its_end_loses_nothing(duckdb_url: str) -> None:
    """Left to itself DuckDB lets the child in, and the child's end takes the parent's log away (see process.py)."""
    parent = python(FORKED, duckdb_url)
    told, _ = parent.communicate(timeout=DEADLINE)
    assert parent.returncode == -signal.SIGKILL
    said = json.loads(told)
    assert len(said) == 2
    for each in said:
        assert "was open when this process was forked" in str(each)
    store = open_store(duckdb_url)
    for number in range(20):
        for when in ("before", "after"):
            found = store.execute(lookup(f"{when}{number}", now=0)).record
            assert found is not None, f"{when}{number} was acknowledged and is lost"
            assert found.state is State.CLAIMED
    assert store.execute(lookup("child", now=0)).record is None
    store.close()


CHILD_FIRST = """
import os, sys
from retrysafe import open_store
from retrysafe.testing.builders import claim
store = open_store(sys.argv[1])
child = os.fork()
if child == 0:
    os._exit(0 if store.execute(claim("child", now=0)).granted else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_may_be_the_one_process(duckdb_url: str) -> None:
    """A server that forks first and opens in one worker: nothing was open, so nothing stands in the way."""
    told, _ = python(CHILD_FIRST, duckdb_url).communicate(timeout=DEADLINE)
    assert told == "0\n"
