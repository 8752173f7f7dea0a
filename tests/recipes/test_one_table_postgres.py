"""The one-table patterns raced by real threads on a real PostgreSQL, each on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from examples.recipes import one_table_postgres as recipe
from psycopg import sql

from tests.opening import unique, with_option

CALLERS = 8
pytestmark = pytest.mark.store("postgres")
Work = Callable[["psycopg.Connection[Any]"], Any]


class Book:
    def __init__(self, url: str, schema: str) -> None:
        self.url = with_option(url, "options", f"-csearch_path%3D{schema}")

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True)

    def race(self, work: Work, callers: int = CALLERS) -> list[Any]:
        """All of them at once. What one raises is its answer."""
        together = threading.Barrier(callers)

        def call(_: int) -> Any:
            with self.connect() as db:
                together.wait(30)
                try:
                    return work(db)
                except (recipe.OtherRequest, recipe.TooEarly) as refused:
                    return type(refused)

        with ThreadPoolExecutor(callers) as pool:
            return list(pool.map(call, range(callers)))

    def count(self, table: str) -> int:
        with self.connect() as db:
            counting = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
            return int(recipe.number(db.execute(counting).fetchone()))


@pytest.fixture
def book(postgres_url: str) -> Iterator[Book]:
    schema = unique("book")
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        made = Book(postgres_url, schema)
        with made.connect() as db:
            db.execute(recipe.SCHEMA)
        yield made
        admin.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


def test_without_a_constraint_everybody_inserts(book: Book) -> None:
    seen_nothing = threading.Barrier(CALLERS)
    told = book.race(lambda db: recipe.look_then_insert(db, "a", "k", 5, lambda: seen_nothing.wait(30)))
    assert (book.count("unguarded"), len(set(told))) == (CALLERS, CALLERS)


def both(look: Callable[..., int]) -> Work:
    """Nobody inserts before all have looked, or begun."""
    looked = threading.Barrier(CALLERS)
    return lambda db: look(db, "a", "k", 5, lambda: looked.wait(30))


@pytest.mark.parametrize(
    "make",
    [
        lambda: lambda db: recipe.single_table(db, "a", "k", 5),
        lambda: lambda db: recipe.nested_write(db, "a", "k", 5, ["tea", "cup"]),
        lambda: both(recipe.two_step_lookup),
        lambda: both(recipe.violation_fallback),
    ],
    ids=["single_table", "nested_write", "two_step_lookup", "violation_fallback"],
)
def test_with_one_there_is_one_payment_and_everybody_gets_it(book: Book, make: Callable[[], Work]) -> None:
    told = book.race(make())
    assert (book.count("payments"), len(told), len(set(told))) == (1, CALLERS, 1)
    assert book.race(lambda db: recipe.single_table(db, "a", "k", 6), 2) == [recipe.OtherRequest] * 2
    assert book.race(lambda db: recipe.two_step_lookup(db, "a", "k", 6), 2) == [recipe.OtherRequest] * 2
    assert book.race(lambda db: recipe.single_table(db, "b", "k", 5), 1) != told[:1], "another account's key"


def test_the_loser_of_a_nested_write_has_written_nothing(book: Book) -> None:
    book.race(lambda db: recipe.nested_write(db, "a", "k", 5, ["tea", "cup"]))
    assert [book.count(table) for table in ("keys", "payments", "lines")] == [1, 1, 2]


def test_an_upsert_tells_everybody_yes(book: Book) -> None:
    amounts = iter(range(1, CALLERS + 1))
    told = book.race(lambda db: recipe.upsert(db, "a", "k", next(amounts)))
    assert (book.count("payments"), len(set(told))) == (1, 1), "one row, and nobody is told that his amount was lost"


def test_without_a_savepoint_the_reading_fails(book: Book) -> None:
    """Why the fallback has one."""
    with book.connect() as db:
        recipe.single_table(db, "a", "k", 5)
        db.execute("BEGIN")
        with pytest.raises(psycopg.errors.UniqueViolation):
            db.execute("INSERT INTO payments (account, key, cents) VALUES ('a', 'k', 5)")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            recipe.winner(db, "a", "k", 5)


def test_a_stricter_isolation_cannot_see_the_winner(book: Book) -> None:
    """At REPEATABLE READ the loser is refused by a row it cannot read: it begins again, and then it is told."""
    with book.connect() as ours, book.connect() as theirs:
        ours.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with ours.transaction():
            ours.execute("SELECT 1 FROM payments")  # the snapshot is taken here
            first = recipe.single_table(theirs, "a", "k", 5)
            with pytest.raises(recipe.TooEarly):
                recipe.violation_fallback(ours, "a", "k", 5)
        assert recipe.violation_fallback(ours, "a", "k", 5) == first
