"""The rights that docs/howto/postgres.md grants are enough for the application, its worker and the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from retrysafe import Answer, RetrySafe
from retrysafe.cli.main import main
from retrysafe.errors import StoreError
from retrysafe.operations import stage
from retrysafe.worker import Worker
from tests.servers.postgres import temporary_database

pytestmark = pytest.mark.store("postgres")

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/postgres.md"
GRANTS = re.findall(r"^GRANT .*;$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture
def app_url(postgres_url: str) -> Iterator[str]:
    """A database of its own with our tables, because the page has their default names, and the worker takes all that
    it finds there; for a user that has the rights of the page and no others."""
    role = f"app_{uuid4().hex[:8]}"
    with temporary_database(postgres_url) as url, psycopg.connect(url, autocommit=True) as owner:
        owner.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(sql.Identifier(role)))
        safe = RetrySafe(url)
        safe.migrate()
        safe.close()
        for grant in GRANTS:
            owner.execute(grant.replace("TO app;", f"TO {role};"))
        owner.execute(sql.SQL("REVOKE CREATE ON SCHEMA public FROM PUBLIC, {}").format(sql.Identifier(role)))
        address = urlsplit(url)
        host = address.netloc.rpartition("@")[2]
        yield urlunsplit(address._replace(netloc=f"{role}:secret@{host}"))
        owner.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        owner.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_guards_transactions_operations_and_the_worker_need_no_more(app_url: str) -> None:
    def connect() -> psycopg.Connection:
        return psycopg.connect(app_url)

    safe = RetrySafe(app_url, tx=connect)
    published = []
    safe.publish("paid")(lambda job: published.append(job.json()))

    @safe.once("receipt:{order}")
    def send_receipt(order: int) -> str:
        return f"sent for {order}"

    @safe.transactional("pay:{order}", tx=connect)
    def pay(tx: psycopg.Connection, order: int) -> int:
        stage(tx, "paid", {"order": order})
        return order

    order = safe.operation("order")

    @order.local
    def book(tx: psycopg.Connection, item: str) -> str:
        return item

    @order.body
    def place(item: str) -> Answer:
        return Answer(201, {"item": book(item)})

    assert send_receipt(7) == send_receipt(7)
    assert pay(7) == pay(7)
    assert order("book", key="o-1") == order("book", key="o-1")
    assert Worker(safe).run_once().healthy
    assert published == [{"order": 7}]
    safe.close()


def test_the_commands_need_no_more(app_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", app_url]) == 0
    assert main(["reap", app_url, "--because", "nightly", "--yes"]) == 0
    assert main(["audit", app_url]) == 0
    main(["doctor", app_url])  # the verdict depends on the settings of the server
    printed = capsys.readouterr()
    assert "it survives a crash" in printed.out
    assert "permission denied" not in printed.out + printed.err


def test_it_may_not_migrate(app_url: str) -> None:
    safe = RetrySafe(app_url)
    with pytest.raises(StoreError, match="permission denied"):
        safe.migrate()
    safe.close()
