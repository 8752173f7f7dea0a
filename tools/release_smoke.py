"""The smoke test of an installed retrysafe. `tools/release_check.py` runs it with the Python of an empty environment,
outside the source tree, so that only the installed packages can be imported.

    python release_smoke.py core            the standard library alone
    python release_smoke.py web redis …     that extra's (or distribution's) modules can be imported too
"""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

MODULES = {
    "fastapi": ["retrysafe.web.fastapi", "retrysafe.web.starlette"],
    "flask": ["retrysafe.web.flask"],
    "litestar": ["retrysafe.web.litestar"],
    "quart": ["retrysafe.web.quart"],
    "postgres": ["retrysafe.stores.postgres"],
    "mysql": ["retrysafe.stores.mysql"],
    "redis": ["retrysafe.stores.redis"],
    "mongodb": ["retrysafe.stores.mongo"],
    "dynamodb": ["retrysafe.stores.dynamodb"],
    "duckdb": ["retrysafe.stores.duckdb"],
    "httpx": ["retrysafe.client.httpx"],
    "requests": ["retrysafe.client.requests"],
    "testing": ["retrysafe.testing.contract"],
    "retrysafe_speedups": ["retrysafe_speedups._speedups"],
    "retrysafe_mssql": ["retrysafe_mssql.store", "retrysafe_mssql.on_pymssql"],
}


def check_function(url: str) -> None:
    """A function that is called twice with the same key runs once."""
    from retrysafe import RetrySafe

    calls = []
    safe = RetrySafe(url)

    @safe.once("charge:{order}")
    def charge(order: str) -> str:
        calls.append(order)
        return f"charged {order}"

    assert [charge("o-1"), charge("o-1"), charge("o-2")] == ["charged o-1", "charged o-1", "charged o-2"]
    assert calls == ["o-1", "o-2"], calls
    safe.close()


async def check_coroutine() -> None:
    """The same for an async function."""
    from retrysafe import RetrySafe

    calls = []
    safe = RetrySafe("memory://")

    @safe.once("charge:{order}")
    async def charge(order: str) -> str:
        calls.append(order)
        return order

    assert [await charge("o-1"), await charge("o-1")] == ["o-1", "o-1"]
    assert calls == ["o-1"]
    await safe.aclose()


def check_commands(url: str) -> None:
    """The command is installed into the environment, and its main verbs run."""
    command = str(Path(sys.executable).with_name("retrysafe"))
    for words in (["--help"], ["migrate", url], ["doctor", url], ["keys", "list", url]):
        subprocess.run([command, *words], check=True, capture_output=True, timeout=60)


def main() -> None:
    import retrysafe

    assert "site-packages" in retrysafe.__file__, f"{retrysafe.__file__} is not the installed package"
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/keys.db"
        check_commands(url)
        check_function(url)
    check_function("memory://")
    asyncio.run(check_coroutine())
    for extra in sys.argv[1:]:
        for module in MODULES.get(extra, []):
            importlib.import_module(module)
    print(f"retrysafe {retrysafe.__version__} on Python {sys.version.split()[0]}: {' '.join(sys.argv[1:]) or 'core'}")


if __name__ == "__main__":
    main()
