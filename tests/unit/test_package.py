"""The package from outside, in a fresh interpreter each time: what importing it loads, what a missing driver says."""

from __future__ import annotations

import subprocess
import sys

import pytest

import retrysafe

BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def fresh(code: str, *blocked: str) -> str:
    """What a fresh interpreter prints, in which some modules are not installed."""
    prelude = BLOCKED.format(names=set(blocked)) if blocked else ""
    ran = subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


LOADED = """
import sys
before = set(sys.modules)
import retrysafe
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - set(sys.stdlib_module_names)))
"""


def test_importing_it_loads_nothing_of_anybody_else() -> None:
    assert fresh(LOADED) == "retrysafe"


def test_importing_it_leaves_what_is_slow_for_those_who_need_it() -> None:
    """tools/import_cost.py measures; these were half of it."""
    slow = ("asyncio", "importlib.metadata", "ssl", "sqlite3", "http", "concurrent.futures", "subprocess", "email")
    code = f"import retrysafe, sys; print(*[name for name in {slow!r} if name in sys.modules])"
    assert fresh(code) == ""


def test_naming_a_store_loads_no_driver() -> None:
    code = """
import sys
from retrysafe import RetrySafe
RetrySafe("postgresql://user@host/db"); RetrySafe("redis://host"); RetrySafe("memory://")
print(*[name for name in ("psycopg", "psycopg_pool", "redis") if name in sys.modules])
"""
    assert fresh(code) == ""


USE = """
import asyncio
from retrysafe import RetrySafe, errors
from retrysafe.core.ops import Stats
safe = RetrySafe({url!r})
for use in (lambda: safe.execute(Stats()), lambda: asyncio.run(safe.aexecute(Stats()))):
    try:
        use()
    except errors.MissingDriver as error:
        assert isinstance(error, ImportError)
        print(error)
"""


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("postgresql://user@127.0.0.1:1/db", "psycopg", "postgres"),
        ("postgresql://user@127.0.0.1:1/db", "psycopg_pool", "postgres"),
        ("redis://127.0.0.1:1/0", "redis", "redis"),
    ],
)
def test_a_missing_driver_names_the_extra(url: str, module: str, extra: str) -> None:
    said = fresh(USE.format(url=url).replace("from retrysafe import RetrySafe, errors", IMPORTS), module).splitlines()
    assert len(said) == 2, "once for each colour"
    for line in said:
        assert repr(module) in line
        assert f"pip install 'retrysafe[{extra}]'" in line


IMPORTS = "import retrysafe.errors as errors\nfrom retrysafe import RetrySafe"


def test_missing_cryptography_names_the_extra() -> None:
    code = """
from retrysafe import KeyRing, errors
try:
    KeyRing({"a": bytes(32)})
except errors.MissingDriver as error:
    print(error)
""".replace("from retrysafe import KeyRing, errors", "import retrysafe.errors as errors\nfrom retrysafe import KeyRing")
    assert "pip install 'retrysafe[encryption]'" in fresh(code, "cryptography")


def test_every_public_name_is_there_and_documented() -> None:
    assert sorted(retrysafe.__all__) == sorted(set(retrysafe.__all__))
    for name in retrysafe.__all__:
        found = getattr(retrysafe, name)
        assert found.__doc__ or isinstance(found, type(retrysafe)), f"{name} has no docstring"
