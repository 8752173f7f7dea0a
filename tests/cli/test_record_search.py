"""`keys show` and similar commands look a record up by its id if the id can be computed. Otherwise they search in
bounded steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.cli import operations, output, session
from retrysafe.cli.main import main
from retrysafe.core.keys import record_id
from retrysafe.core.ops import List, Lookup, Op, Page, Stats
from retrysafe.errors import UsageError
from retrysafe.operators import record_search
from retrysafe.operators.errors import NotFound
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import answer, claim

CROWD = 60


class Watched:
    """A store that records the types of its operations and the sizes of its pages."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url)
        self.op_types: list[type[Any]] = []
        self.pages: list[int] = []

    def execute(self, op: Op[Any]) -> Any:
        reply = self._store.execute(op)
        self.op_types.append(type(op))
        if isinstance(op, List):
            self.pages.append(len(reply.records))
        return reply

    def execute_many(self, ops: Any) -> list[Any]:
        self.op_types += map(type, ops)
        return self._store.execute_many(ops)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def born(key: str, scope: str = "tenant", namespace: str = "default", kind: Any = "http") -> Any:
    return claim(key, namespace=namespace, scope=scope, kind=kind, now=None)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/keys.db"
    store = open_store(url)
    store.migrate()
    store.execute_many([born(f"key-{number}") for number in range(CROWD)])
    store.close()
    return url


@pytest.fixture
def seen(url: str, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(record_search, "PAGE_RECORDS", 10)
    monkeypatch.setattr(record_search, "MAX_PAGE_RECORDS", 10)
    watched = Watched(url)
    monkeypatch.setattr(session, "open_store", lambda given: watched)
    return watched


@pytest.fixture
def show(url: str, seen: Watched, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*words: str, verb: str = "show") -> tuple[int, str, str]:
        code = main(["keys", verb, url, *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_with_its_scope_a_key_is_one_look(show: Any, seen: Watched) -> None:
    code, out, _ = show("key-7", "--scope", "tenant")
    assert (code, out.count("key-7")) == (0, 1)
    assert set(seen.op_types) == {Lookup}


def test_a_key_that_is_not_there_is_looked_up_and_not_searched_with_its_scope(show: Any, seen: Watched) -> None:
    code, out, err = show("no-such-key", "--scope", "tenant")
    assert (code, out) == (3, "")
    assert "'default'" in err, "it says where it looked"
    assert "--namespace" in err
    assert set(seen.op_types) == {Lookup, List}
    assert len(seen.pages) == 1, "whether the scope is mistyped: the first record that has it ends that search"


def test_every_kind_and_what_was_observed_is_found_by_scope(show: Any, seen: Watched) -> None:
    seen.execute_many([born("k", kind="function"), born("k", kind="job"), born("k", namespace="observed:default")])
    assert show("k", "--scope", "tenant")[1].count("tenant") == 3
    assert show("k", "--scope", "tenant", "--kind", "job")[1].count("tenant") == 1


def test_a_namespace_is_part_of_the_look(show: Any, seen: Watched) -> None:
    seen.execute_many([born("mine", namespace="billing")])
    assert show("mine", "--scope", "tenant")[0] == 3
    assert "billing" in show("mine", "--scope", "tenant", "--namespace", "billing")[1]


def test_the_first_digits_of_an_id_are_one_page(show: Any, seen: Watched) -> None:
    digits = record_id("http", "default", "tenant", "key-9").hex()[:12]
    assert "key-9" in show(digits)[1]
    assert sum(seen.pages) <= 10, "the list begins where the id is"


def test_a_key_that_looks_like_the_digits_of_an_id_is_found(show: Any, seen: Watched) -> None:
    seen.execute_many([born("8e03978e40d5")])
    assert "8e03978e40d5" in show("8e03978e40d5")[1]


def test_a_search_stops_at_its_limit_and_says_how_to_go_on(show: Any, seen: Watched) -> None:
    seen.execute_many([born("shared", scope=f"tenant-{number}") for number in range(5)])
    found, after = [], ""
    for _ in range(10):
        before = sum(seen.pages)
        _, out, err = show("shared", "--examine", "20", *(["--after", after] if after else []))
        found += [line for line in out.splitlines() if line.startswith("scope")]
        assert sum(seen.pages) - before <= 20
        if "--after" not in err:
            break
        after = err.partition("--after ")[2].split()[0]
    assert sorted(line.split()[1] for line in found) == [f"tenant-{number}" for number in range(5)]


def test_a_search_that_found_nothing_so_far_does_not_say_that_there_is_nothing(show: Any, seen: Watched) -> None:
    code, _, err = show("no-such-key", "--examine", "20")
    assert code == 3
    assert "20 records" in err
    assert "--scope" in err
    assert "no key" not in err
    assert "no key 'no-such-key'" in show("no-such-key")[2]


def test_what_is_found_is_shown_before_the_search_goes_on(url: str, seen: Watched) -> None:
    first = seen.execute(List(limit=1)).records[0].key
    seen.pages.clear()
    search = record_search.RecordSearch(seen.execute, List(), limit=1000)
    assert next(each for each in search if each.key == first)
    assert len(seen.pages) == 1


def test_the_pages_of_a_long_search_grow(seen: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_search, "MAX_PAGE_RECORDS", 25)
    found = list(record_search.RecordSearch(seen.execute, List(), limit=1000))
    assert [found.count(each) for each in found] == [1] * CROWD
    assert seen.pages == [10, 20, 25, CROWD - 55]


def test_the_pages_of_a_search_stay_as_they_are_asked_for(seen: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_search, "MAX_PAGE_RECORDS", 25)
    list(record_search.RecordSearch(seen.execute, List(), limit=None, page_records=10))
    assert set(seen.pages) == {10}


@pytest.mark.parametrize(
    ("records", "each", "then"),
    [(200, 0, 400), (200, 10_000, 400), (200, 15_000, 200), (200, 25_000, 100), (1_500, 0, 2_000), (1, 9_000_000, 1)],
)
def test_pages_grow_while_they_are_light(url: str, records: int, each: int, then: int) -> None:
    with RetrySafe(url) as safe:
        (record,) = safe.execute(List(limit=1)).records
    third = bytes(each // 3)
    record = record._replace(progress=third, input=third, answer=answer(third))
    assert record_search.fit_next_page(records, Page((record,) * records, "next")) == then


def test_a_page_that_was_asked_to_be_large_does_not_shrink_for_being_light() -> None:
    assert record_search.fit_next_page(5_000, Page((), "next")) == 5_000


def test_a_list_reads_no_page_more_than_it_shows(show: Any, seen: Watched) -> None:
    code, out, _ = show("--limit", "7", verb="list")
    assert (code, len(out.splitlines())) == (0, 7)
    assert seen.pages == [7]


def test_a_long_search_says_how_far_it_is(show: Any, seen: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PROGRESS_EVERY_RECORDS", 20)
    _, _, err = show("no-such-key")
    assert "examined" not in err, "not in a log"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, _, err = show("no-such-key")
    assert [line for line in err.splitlines() if "examined" in line][:2] == [
        "20 records examined", "40 records examined",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [["--examine", "0"], ["--after", "zz"]])
def test_what_cannot_be_searched_is_refused(show: Any, words: list[str]) -> None:
    code, _, err = show("key-7", *words)
    assert code == 2
    assert words[1] in err


def test_nothing_is_resolved_on_the_strength_of_a_search_that_was_not_finished(
    show: Any, seen: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_search, "MAX_EXAMINED_RECORDS", 20)
    first = seen.execute(List(limit=1)).records[0].key
    words = ("--did-not-happen", "--because", "looked")
    code, _, err = show(first, *words, verb="resolve")
    assert (code, "--scope" in err, "20 records" in err) == (2, True, True)
    seen.op_types.clear()
    _, _, err = show(first, *words, "--scope", "tenant", verb="resolve")
    assert "is claimed in attempt 1" in err, "it was found, and has a living owner"
    assert List not in seen.op_types


def test_a_list_counts_only_when_it_is_asked_to(show: Any, seen: Watched) -> None:
    _, out, err = show("--limit", "3", verb="list")
    assert len(out.splitlines()) == 3
    assert "--count" in err
    assert Stats not in seen.op_types
    assert f"in all {CROWD} claimed" in show("--limit", "3", "--count", verb="list")[2]


# Operations --------------------------------------------------------------------------------------


class Counting(RetrySafe):
    read = 0

    def execute(self, op: Op[Any]) -> Any:
        reply = super().execute(op)
        if isinstance(op, List):
            self.read += len(reply.records)
        return reply


@pytest.fixture
def safe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    """One run of an operation among many calls of a function."""
    monkeypatch.setattr(record_search, "PAGE_RECORDS", 10)
    with Counting("memory://") as safe:
        greet = safe.operation("greet")

        @greet.body
        def body() -> Answer:
            return Answer(200)

        @safe.once("n:{n}")
        def count(n: int) -> int:
            return n

        greet(key="the-one")
        for n in range(CROWD):
            count(n)
        yield safe


def test_a_run_is_found_by_its_key_without_a_walk(safe: Counting) -> None:
    assert operations.find_run(safe, "the-one").key == "the-one"
    assert safe.read == 0


def test_runs_among_many_other_records_are_listed_within_a_bound(
    safe: Counting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(operations, "load_safe", lambda text: safe)
    after: list[str] = []
    found = ""
    for _ in range(10):
        before = safe.read
        assert main(["operations", "x:y", "--list", "--examine", "20", *after]) == 0
        out, err = capsys.readouterr()
        found += out
        assert safe.read - before <= 20
        if "--after" not in err:
            break
        after = ["--state", "completed", "--after", err.partition("--after ")[2].split()[0]]
        assert " ".join(after) in err
    assert found.count("the-one") == 1


def test_a_run_that_a_bounded_search_did_not_find_is_asked_for_by_id(
    safe: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_search, "MAX_EXAMINED_RECORDS", 20)
    with pytest.raises(UsageError, match="give its id"):
        operations.find_run(safe, "no-such-run")


def test_an_id_that_no_run_has_is_found_out_without_a_search(safe: Counting) -> None:
    with pytest.raises(NotFound, match="names 0 runs"):
        operations.find_run(safe, "0123456789abcdef", by_id=True)
    with pytest.raises(NotFound, match="names 0 runs"):
        operations.find_run(safe, "0" * 64, by_id=True)
    assert safe.read <= 20, "one page each, in the order of ids"


# Where the store finds keys -------------------------------------------------------------------------


@pytest.fixture
def duck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Each page of DuckDB is a look at the whole table, so it is asked for the key itself."""
    pytest.importorskip("duckdb")
    monkeypatch.setattr(record_search, "PAGE_RECORDS", 10)
    watched = Watched(f"duckdb:///{tmp_path}/keys.duckdb")
    watched.migrate()
    watched.execute_many([born(f"key-{number}") for number in range(CROWD)])
    watched.op_types.clear()
    monkeypatch.setattr(session, "open_store", lambda given: watched)
    yield watched
    watched.close()


@pytest.fixture
def show_duck(duck: Watched, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*words: str, verb: str = "show") -> tuple[int, str, str]:
        code = main(["keys", verb, f"duckdb:///{tmp_path}/keys.duckdb", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.mark.store("duckdb")
def test_a_key_without_its_scope_is_one_list_where_the_store_finds_keys(show_duck: Any, duck: Watched) -> None:
    duck.execute_many([born("shared", scope=f"tenant-{number}") for number in range(25)])
    duck.pages.clear()
    code, out, _ = show_duck("shared", "--examine", "20")
    assert code == 0
    assert sorted(line.split()[1] for line in out.splitlines() if line.startswith("scope")) == sorted(
        f"tenant-{number}" for number in range(25)
    )
    assert duck.pages == [10, 15], "no record of another key is read"


@pytest.mark.store("duckdb")
def test_filters_count_where_the_store_finds_keys(show_duck: Any, duck: Watched) -> None:
    duck.execute_many([born("k", namespace="billing"), born("k", kind="job"), born("k", scope="other")])
    assert show_duck("k", "--namespace", "billing")[1].count("billing") == 1
    assert show_duck("k", "--kind", "job")[1].count("tenant") == 1
    assert show_duck("k")[1].count("scope") == 3


@pytest.mark.store("duckdb")
def test_a_key_that_is_nowhere_is_found_out_at_once_with_what_was_meant(show_duck: Any, duck: Watched) -> None:
    duck.execute_many([born("charge:{7}")])
    duck.pages.clear()
    code, _, err = show_duck("charge:7")
    assert code == 3
    assert "did you mean 'charge:{7}'?" in err
    assert sum(duck.pages) <= 3
    assert show_duck("no-such-key")[0] == 3


@pytest.mark.store("duckdb")
def test_an_action_sees_every_key_that_the_text_can_mean(show_duck: Any, duck: Watched) -> None:
    """The first digits of one record's id are another client's key: the command refuses to guess."""
    digits = record_id("http", "default", "tenant", "key-9").hex()[:12]
    duck.execute_many([born(digits, scope="mallory")])
    code, _, err = show_duck(digits, "--because", "x", verb="release")
    assert (code, "names 2 keys" in err) == (2, True)
    assert show_duck(digits, "--id", "--owner-is-dead", "--because", "x", verb="release")[0] == 1, "a guard: resolve it"
