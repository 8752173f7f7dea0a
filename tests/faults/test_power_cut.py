"""A server that a test kills is dead when `kill` returns: nothing of it answers any more."""

from __future__ import annotations

import threading
from contextlib import suppress

import psycopg

from tests.servers.base import ServerUnavailable, is_running
from tests.servers.lazy import missing
from tests.servers.postgres import PostgresServer

BUSY = "DO $$ BEGIN LOOP END LOOP; END $$"
"""It waits for nothing, so it does not notice that its parent is gone."""


def test_no_backend_outlives_the_server() -> None:
    server = PostgresServer(statement_timeout="20s")
    try:
        server.start()
    except ServerUnavailable as error:
        missing(str(error))
        raise
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            backend = connection.info.backend_pid
            assert is_running(backend)

            def work() -> None:
                with suppress(psycopg.Error):
                    connection.execute(BUSY)

            working = threading.Thread(target=work)
            working.start()
            with psycopg.connect(server.url) as other:
                query = "SELECT state FROM pg_stat_activity WHERE pid = %s"
                while other.execute(query, [backend]).fetchone() != ("active",):
                    other.rollback()  # it sees another state only in another transaction
            server.kill()
            assert not is_running(backend)
            working.join()
    finally:
        server.stop()
