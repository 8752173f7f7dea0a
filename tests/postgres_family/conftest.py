"""PostgreSQL in its other shapes: each major version, behind PgBouncer, with a standby. Each starts when asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kept import PostgresTables
from tests.opening import patient, with_option
from tests.servers.lazy import started
from tests.servers.pgbouncer import PgBouncerServer
from tests.servers.postgres_versions import MAJORS, OldPostgresServer


class Versions:
    """A server and its tables per major version; each is started once, by whoever asks first."""

    def __init__(self) -> None:
        self.servers: dict[int, OldPostgresServer] = {}
        self.labels: dict[int, str] = {}
        self._tables: dict[int, PostgresTables] = {}

    def tables(self, major: int) -> PostgresTables:
        if major not in self._tables:
            # What a commit is worth is not asked here: a disk that is waited for would be most of the time it takes.
            server = self.servers[major] = started(OldPostgresServer(major, fsync="off"))
            self.labels[major] = f"{server.version()} (wheel)"
            self._tables[major] = PostgresTables(server.url)
        return self._tables[major]

    def close(self) -> None:
        for tables in self._tables.values():
            tables.close()
        for server in self.servers.values():
            server.stop()


@pytest.fixture(scope="session")
def versions() -> Iterator[Versions]:
    made = Versions()
    yield made
    made.close()


def version_marks(major: int) -> list[pytest.MarkDecorator]:
    assert major in MAJORS
    return [pytest.mark.store(f"postgres {major}"), pytest.mark.xdist_group(f"postgres {major}")]


class Pooled(PostgresTables):
    """Tables of this worker's own, used through PgBouncer and emptied beside it."""

    def __init__(self, direct: str, server: PgBouncerServer) -> None:
        super().__init__(direct)
        self.server = server
        self.direct = direct
        self.label = server.version()
        self.url = with_option(patient("postgres", server.url), "table", self.prefix)


@pytest.fixture(scope="session")
def pooled(postgres_url: str) -> Iterator[Pooled]:
    server = started(PgBouncerServer(postgres_url))
    tables = Pooled(postgres_url, server)
    yield tables
    tables.close()
    server.stop()
