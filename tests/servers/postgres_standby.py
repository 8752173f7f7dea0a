"""A standby of a test's own PostgreSQL: made by `pg_basebackup`, fed over the wire, ready to be promoted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg

from tests.servers.base import ServerUnavailable, give_away, nobody
from tests.servers.postgres import PostgresServer
from tests.waiting import until

COPY_SECONDS = 120
PATIENCE = 60.0


class StandbyServer(PostgresServer):
    name = "postgres-standby"

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self.primary = primary

    def prepare(self, folder: Path) -> None:
        give_away(folder)
        (folder / "log").touch()
        copy = [str(self.binaries() / "pg_basebackup"), "-d", self.primary.url, "-D", str(folder / "data")]
        made = subprocess.run(
            [*copy, "--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--wal-method=stream"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=COPY_SECONDS,
            **nobody(),
        )
        if made.returncode != 0:
            raise ServerUnavailable(f"pg_basebackup ended with code {made.returncode}: {made.stderr.strip()[-2000:]}")

    def promote(self) -> None:
        """Returns when it takes writes."""
        said = ask(self.url, "SELECT pg_promote(true, 60)")
        assert said is True, "the standby was not promoted"

    def leave(self) -> None:
        """It gets no more from its primary, which knows nothing of it from then on."""
        for statement in ("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"):
            ask(self.url, statement)
        until(lambda: states(self.primary) == [], PATIENCE, "the standby to leave")


def states(primary: PostgresServer) -> list[str]:
    """`async`, `sync` or `quorum` for each standby that is fed."""
    with psycopg.connect(primary.url, autocommit=True) as admin:
        return [state for (state,) in admin.execute("SELECT sync_state FROM pg_stat_replication").fetchall()]


def make_synchronous(primary: PostgresServer) -> None:
    """From here on nobody is told of a commit before a standby has it on disk. Returns when that is so."""
    for statement in ("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'", "SELECT pg_reload_conf()"):
        ask(primary.url, statement)
    until(lambda: states(primary) == ["quorum"], PATIENCE, "the standby to become a synchronous one")


def ask(url: str, statement: str) -> object:
    with psycopg.connect(url, autocommit=True) as admin:
        cursor = admin.execute(statement)
        row = cursor.fetchone() if cursor.description is not None else None
    return row[0] if row else None
