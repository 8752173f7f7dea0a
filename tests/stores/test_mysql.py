"""MySQL and MariaDB beside the contract: addresses, errors, packets, the clock, the schema, the pool."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncmy
import pymysql
import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Lookup
from retrysafe.errors import SchemaMissing, StoreError, StoreUnavailable, StoreUnclear, StoreURLError, UsageError
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.mysql.aio import AsyncMysqlStore
from retrysafe.stores.mysql.dialect import DIALECT, parse_url
from retrysafe.stores.mysql.errors import translate_error
from retrysafe.stores.mysql.protocol import (
    MAX_HEX_BYTES,
    MAX_PACKET_CHARS,
    PacketReply,
    build_mogrify,
    error_number,
    merge_plans,
    plan_packets,
    split_steps,
)
from retrysafe.stores.mysql.sync import MysqlStore
from retrysafe.stores.registry import find_backend, open_store
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import build_names
from retrysafe.stores.sql.plans import LockNotAvailable
from retrysafe.stores.sql.retrying import RetryNow
from retrysafe.testing import Do
from retrysafe.testing.builders import answer, claim, complete
from tests.faults.story import resend
from tests.opening import COLOURS, unique, with_option
from tests.servers.mysql import sessions
from tests.waiting import until

SERVERS = [pytest.param(name, marks=pytest.mark.store(name)) for name in ("mysql", "mariadb")]


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    return with_option(request.getfixturevalue(f"{request.param}_url"), "table", unique())


# Addresses ----------------------------------------------------------------------------------------


def test_an_address_in_full() -> None:
    at = parse_url("mysql://us%40er:p%2Fw@db.example:3307/shop?table=mine&pool=3&pool_timeout=0.5")
    assert at.connect == {
        "host": "db.example", "port": 3307, "user": "us@er", "password": "p/w", "database": "shop", "charset": "utf8mb4"
    }  # fmt: skip
    assert (at.names.bare, at.pool, at.pool_timeout) == ("mine", 3, 0.5)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://host", "names no database"),
        ("mysql:///shop", "names no database"),
        ("mysql://host/a/b", "names no database"),
        ("mysql://host:port/shop", "3306"),
        ("mysql://host/shop?colour=red", "colour=red"),
        ("mysql://host/shop?ssl=maybe", "neither on nor off"),
        ("mysql://host/shop?ssl_ca=/nowhere.pem", "no file"),
    ],
)
def test_a_wrong_address_is_told(url: str, says: str) -> None:
    with pytest.raises(StoreURLError, match=re.escape(says)):
        parse_url(url)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(StoreURLError) as told:
        parse_url("mysql://me:hunter2@host")
    assert "hunter2" not in str(told.value)


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (1213, RetryNow), (1205, LockNotAvailable), (1146, SchemaMissing), (2006, StoreUnclear), (2013, StoreUnclear),
        (1053, StoreUnclear), (1290, StoreUnavailable), (1040, StoreUnavailable), (1153, StoreError),
        (1406, StoreError), (0, StoreUnclear),
    ],
)  # fmt: skip
def test_what_an_error_means(number: int, kind: type[Exception]) -> None:
    assert type(translate_error(pymysql.OperationalError(number, "said so"), "mysql://h/d")) is kind


def test_a_held_row_refuses_a_batch() -> None:
    assert type(translate_error(pymysql.OperationalError(1205, "said so"), "mysql://h/d", batch=True)) is BatchRefused


def test_a_number_counts_only_from_a_driver() -> None:
    """A KeyError(1213) of the user is no deadlock. An error that wraps the driver's error counts as the driver's."""
    assert error_number(KeyError(1213)) is None
    wrapped = RuntimeError("from above")
    wrapped.__cause__ = pymysql.OperationalError(1213, "deadlock")
    assert error_number(wrapped) == 1213


# Packets ------------------------------------------------------------------------------------------


def plain(sql: str, values: Any) -> str:
    return sql


def heard(conversation: Any, *replies: PacketReply) -> tuple[list[str], Any]:
    """The packets that are sent, and the rows that are read."""
    sent = [next(conversation)]
    for reply in replies[:-1]:
        sent.append(conversation.send(reply))
    with pytest.raises(StopIteration) as done:
        conversation.send(replies[-1])
    return sent, done.value.value


# By its name at the top: `install_as_MySQLdb` makes Django load pymysql.err a second time, with classes of its own.
DUPLICATE = pymysql.IntegrityError(1062, "there already")


def test_all_steps_go_in_one_packet_and_each_statement_says_its_last() -> None:
    two, one = Statement("INSERT /* or nothing */ a; SELECT b", {}), Statement("UPDATE c", {})
    sent, found = heard(plan_packets([two, one], plain), PacketReply([[(1,)], [("b",)], [(1,), (1,)]], None))
    assert sent == ["INSERT /* or nothing */ a;SELECT b;UPDATE c"]
    assert found == [[("b",)], [(1,), (1,)]]


def test_what_is_there_already_is_passed_over_and_the_rest_is_sent() -> None:
    two, one = Statement("INSERT /* or nothing */ a; SELECT b", {}), Statement("UPDATE c", {})
    sent, found = heard(plan_packets([one, two], plain), PacketReply([[]], DUPLICATE), PacketReply([[("b",)]], None))
    assert sent == ["UPDATE c;INSERT /* or nothing */ a;SELECT b", "SELECT b"]
    assert found == [[], [("b",)]]


def test_any_other_insert_that_meets_a_duplicate_fails() -> None:
    conversation = plan_packets([Statement("INSERT a", {})], plain)
    next(conversation)
    with pytest.raises(pymysql.IntegrityError):
        conversation.send(PacketReply([], DUPLICATE))


def test_a_packet_has_a_limit() -> None:
    large = [Statement("x" * (MAX_PACKET_CHARS // 2 + 1), {}) for _ in range(3)]
    sent, _ = heard(plan_packets(large, plain), *[PacketReply([[]], None)] * 3)
    assert [len(packet) for packet in sent] == [MAX_PACKET_CHARS // 2 + 1] * 3


def test_values_are_written_as_literals() -> None:
    mogrify = build_mogrify(lambda value: f"<{value!r}>")
    values = {"a": b"\x00'", "b": b"x" * (MAX_HEX_BYTES + 1), "c": -7, "d": None, "e": "it's", "f": True}
    text = mogrify("%(a)s %(c)s %(d)s %(e)s %(f)s %%", values)
    assert text == "x'0027' -7 NULL <\"it's\"> <True> %"
    assert mogrify("%(b)s", values) == f"<{values['b']!r}>"
    assert mogrify("100 %", None) == "100 %"


def test_plans_go_in_step() -> None:
    def plan(*says: str) -> Any:
        told = []
        for text in says:
            told.append((yield Statement(text, {})))
        return told

    together = merge_plans([plan("a", "b"), plan(), plan("c")])
    assert [statement.sql for statement in next(together)] == ["a", "c"]
    assert [statement.sql for statement in together.send(["A", "C"])] == ["b"]
    with pytest.raises(StopIteration) as done:
        together.send(["B"])
    assert done.value.value == [["A", "B"], [], ["C"]]


def test_every_text_can_be_split() -> None:
    """A `;` inside a literal would be taken for the end of a statement."""
    for name, text in DIALECT.load(build_names()).items():
        for step in split_steps(text):
            assert step.count("'") % 2 == 0, name
            opening = step.lstrip("(\n ").split()[0]  # a text that stands for a table is in parentheses
            assert opening in ("SELECT", "INSERT", "UPDATE", "DELETE", "SET"), name
            assert "ON CONFLICT" not in step, name
            assert '"' not in step, name


# Real servers -------------------------------------------------------------------------------------


def address(url: str) -> dict[str, Any]:
    """The address of the server, without the store's own settings."""
    return {name: value for name, value in parse_url(url).connect.items() if name != "charset"}


def test_the_clock_is_utc_whatever_the_session_thinks(url: str) -> None:
    at = parse_url(url)
    with pymysql.connect(**at.connect) as connection, connection.cursor() as cursor:
        sql = DIALECT.fill("SELECT {now}", at.names)
        for zone in ("+00:00", "-11:00", "+13:00"):
            cursor.execute("SET time_zone = %s", [zone])
            cursor.execute(sql, {"now": None})
            (moment,) = cursor.fetchone() or (0,)
            assert abs(moment / 1e6 - time.time()) < 60


def test_without_tables_the_command_is_named(url: str) -> None:
    store = open_store(url)
    with pytest.raises(SchemaMissing, match="retrysafe migrate"):
        store.execute(Lookup(b"x" * 32))
    store.close()


def test_migrating_twice_does_nothing_more_and_the_script_makes_the_same(url: str) -> None:
    store = open_store(url)
    assert store.migrate() == [
        *(
            "0001_keys",
            "0002_outbox",
            "0003_late_copies",
            "0004_outbox_namespaces",
            "0005_receipts",
            "0006_dead_letters",
        )
    ]
    assert store.migrate() == []
    store.close()
    again = re.sub("table=.*", f"table={unique()}", url)
    at = parse_url(again)
    script = find_backend(again).schema(again)
    with pymysql.connect(**at.connect, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in script.split(";\n"):
            if statement.strip():
                cursor.execute(statement)
        assert shape(cursor, at.names.bare) == shape(cursor, parse_url(url).names.bare)
    by_hand = open_store(again)
    assert by_hand.migrate() == []
    assert by_hand.execute(claim("k")).granted
    by_hand.close()


def test_many_that_migrate_at_once_do_each_step_once(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        stores = [open_store(url) for _ in range(4)]
        applied = list(pool.map(lambda store: store.migrate(), stores))
        for store in stores:
            store.close()
    assert sorted(map(len, applied)) == [0, 0, 0, 6]


def shape(cursor: Any, prefix: str) -> list[Any]:
    cursor.execute(
        "SELECT substr(table_name, %s), column_name, column_type, collation_name FROM information_schema.columns "
        "WHERE table_schema = DATABASE() AND table_name LIKE %s ORDER BY 1, 2",
        [len(prefix) + 1, f"{prefix}\\_%"],
    )
    return list(cursor.fetchall())


def test_a_server_that_is_not_strict_and_repeatable_changes_nothing(url: str) -> None:
    """The store's sessions set what they need."""
    store = open_store(url)
    store.migrate()
    reply = store.execute(claim("k" * 300))
    assert reply.granted
    big = bytes(range(256)) * 4096 * 3
    assert store.execute(complete(reply, big)) is True
    found = store.execute(Lookup(reply.record.id)).record
    assert found is not None
    assert found.answer == answer(big)
    store.close()


@pytest.fixture
def killer(url: str) -> Iterator[Any]:
    with pymysql.connect(**parse_url(url).connect, autocommit=True) as connection, connection.cursor() as cursor:
        yield cursor


def connections(cursor: Any) -> set[int]:
    """The connections to this database. Connections of other tests must not be killed."""
    return sessions(cursor, "db = DATABASE()")


def test_idle_connections_that_were_ended_are_not_given_out(url: str, killer: Any) -> None:
    """wait_timeout, a restart, an administrator: the next call does not fail because of it."""
    before = connections(killer)
    store = open_store(url)
    store.migrate()
    its_own = connections(killer) - before
    assert its_own
    for number in its_own:
        killer.execute(f"KILL {number}")
    until(lambda: not connections(killer) & its_own, 30, "the connections to be ended")
    assert store.execute(claim("k", now=None)).granted
    store.close()


async def in_both_colours(safe: RetrySafe) -> None:
    op = claim(unique(), now=None)
    assert safe.store.execute(op).granted
    assert (await safe.async_store.execute(Lookup(op.id))).record is not None
    await safe.aclose()


# Connections by a function of the user's ---------------------------------------------------------


def over(connect: Callable[..., Any], colour: str, **more: Any) -> Do:
    """A store over a function that gets the driver's `connect` and the settings that the store passes."""
    if colour == "sync":
        return Do.sync(MysqlStore(lambda **settings: connect(pymysql.connect, settings), **more))
    return Do.asynchronous(AsyncMysqlStore(lambda **settings: connect(asyncmy.connect, settings), **more))


@pytest.mark.parametrize("colour", COLOURS)
def test_each_new_connection_asks_again(url: str, killer: Any, colour: str) -> None:
    """As with short-lived credentials: those of the first connection are invalid at the second."""
    at, asked = parse_url(url), []
    accounts = [unique("a"), unique("b")]
    for account in accounts:
        killer.execute(f"CREATE USER {account}")
        killer.execute(f"GRANT ALL ON `{at.connect['database']}`.* TO {account}")

    def connect(driver: Any, settings: dict[str, Any]) -> Any:
        asked.append(accounts[0])
        return driver(**{**address(url), "user": accounts[0]}, **settings)

    do = over(connect, colour, table=at.names.bare, pool=1)
    do.migrate()
    assert do(claim("k", now=None)).granted
    assert asked == accounts[:1], "an open one is kept"
    void = accounts.pop(0)
    killer.execute(f"DROP USER {void}")
    for number in sessions(killer, "user = %s", [void]):
        killer.execute(f"KILL {number}")
    until(lambda: not sessions(killer, "user = %s", [void]), 30, "the connection to be ended")
    assert resend(lambda: do(claim("other", now=None))).granted
    assert asked == [void, *accounts]
    assert sessions(killer, "user = %s", accounts)
    do.close()
    killer.execute(f"DROP USER {accounts[0]}")


@pytest.mark.parametrize("colour", COLOURS)
def test_a_function_that_keeps_the_settings_to_itself_is_told(url: str, colour: str) -> None:
    """Without FOUND_ROWS a heartbeat that changes nothing would look like a lost lease."""
    do = over(lambda driver, settings: driver(**address(url)), colour)
    with pytest.raises(UsageError, match=r"hand on the settings.*\.connect\(host=…, \*\*settings\)"):
        do(claim("k", now=None))
    do.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_function_that_fails_means_unavailable(colour: str) -> None:
    """Whatever the function raises: nothing was sent, so nothing happened, and a retry is safe."""

    def connect(driver: Any, settings: dict[str, Any]) -> Any:
        raise LookupError("no token today")

    do = over(connect, colour, pool=1)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="no token today") as told:
            do(claim("k", now=None))
        assert not isinstance(told.value, StoreUnclear)
        assert isinstance(told.value.__cause__, LookupError)
    do.close()


def test_the_page_runs_on_the_real_thing(url: str) -> None:
    page = Path(__file__).parents[2] / "docs" / "howto" / "mysql.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    at = parse_url(url)
    code = "\n".join(blocks).replace("mysql://app:secret@127.0.0.1:3306/shop", url)
    for password in ('"secret"', "token()"):
        written = f'host="127.0.0.1", user="app", password={password}, database="shop"'
        assert written in code
        code = code.replace(written, "**AT")
    assert code.count("open_connection)") == 2
    code = code.replace("open_connection)", f"open_connection, table={at.names.bare!r})")
    names: dict[str, Any] = {"__name__": "page", "AT": address(url)}
    exec(compile(code, str(page), "exec"), names)
    names["safe"].migrate()
    asyncio.run(in_both_colours(names["on_tokens"]))
    with pymysql.connect(**at.connect, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS orders")
        cursor.execute("CREATE TABLE orders (number int, item varchar(100))")
        assert names["order"](7, "a lamp") == "ordered a lamp"
        assert names["order"](7, "a lamp") == "ordered a lamp"
        cursor.execute("SELECT * FROM orders")
        assert cursor.fetchall() == ((7, "a lamp"),)
        cursor.execute("DROP TABLE orders")
    names["safe"].close()
