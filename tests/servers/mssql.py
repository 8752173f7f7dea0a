"""SQL Server: none can be started here (SERVERS.md), so its suite runs on one that is named, and says so otherwise."""

from __future__ import annotations

import os

VARIABLE = "RETRYSAFE_TEST_MSSQL_URL"

NOT_RUN = (
    f"not run: SQL Server (none can be started without root; name an empty database of yours in {VARIABLE}): "
    "its statements were only parsed"
)


def url() -> str:
    """The server's address; empty where there is none. A missing one fails nothing, in CI neither: the docs say that
    this store is not run."""
    return os.environ.get(VARIABLE, "")


def closing_line() -> str:
    """What the run's report says of it; empty where it ran, because then it is counted with the others."""
    return "" if url() else NOT_RUN
