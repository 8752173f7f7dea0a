"""PgBouncer out of a Debian package, in transaction mode, in front of a PostgreSQL: two sessions for all its clients,
used in turn, so that a connection meets the other one at its next transaction.

Debian 12's 1.18 keeps no account of prepared statements, which is the harder case for whoever is behind it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from tests.servers.base import Server, give_away, nobody
from tests.servers.debian import Prefix, package

SETTINGS = """
[databases]
* = host={host} port={port} user={user} {password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool}
server_round_robin = 1
max_client_conn = 300
"""


class PgBouncerServer(Server):
    name = "pgbouncer"

    def __init__(self, behind: str, pool: int = 2) -> None:
        super().__init__()
        self.behind = urlsplit(behind)
        self.pool = pool

    @property
    def url(self) -> str:
        return f"postgresql://{self.behind.username}@127.0.0.1:{self.port}{self.behind.path}"

    def version(self) -> str:
        with psycopg.connect(f"postgresql://pgbouncer@127.0.0.1:{self.port}/pgbouncer", autocommit=True) as admin:
            cursor = psycopg.ClientCursor(admin)  # its console knows the simple protocol only
            row = cursor.execute("SHOW VERSION").fetchone()
        assert row is not None
        return str(row[0])

    def prepare(self, folder: Path) -> None:
        give_away(folder)
        (folder / "log").touch()
        self.prefix()  # fetched now, if it has to be
        at = self.behind
        settings = SETTINGS.format(
            host=at.hostname,
            port=at.port or 5432,
            user=at.username,
            password=f"password={at.password}" if at.password else "",
            listen=self.port,
            pool=self.pool,
        )
        (folder / "pgbouncer.ini").write_text(settings)

    def prefix(self) -> Prefix:
        return package("bookworm", "pgbouncer")

    def command(self, folder: Path) -> list[str]:
        return [*self.prefix().command("usr/sbin/pgbouncer"), str(folder / "pgbouncer.ini")]

    def ping(self) -> None:
        with psycopg.connect(self.url, connect_timeout=5):
            pass

    def as_user(self) -> dict[str, Any]:
        return nobody()
