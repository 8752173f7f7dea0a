"""The key of a call."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from retrysafe.client import Budget, RetriesError, operation
from retrysafe.client.operation import identify, rotate_key
from retrysafe.errors import UsageError


def never() -> str:
    raise AssertionError("no random key was expected")


def key(path: str = "/payments", method: str = "POST", host: str = "api") -> str:
    return identify(method, host, path, None, never).key


def test_a_named_operation_gives_the_same_keys_again() -> None:
    with operation("order-7"):
        first = [key(), key(), key("/mails"), key(method="PUT"), key(host="other")]
    with operation("order-7"):
        again = [key(), key(), key("/mails"), key(method="PUT"), key(host="other")]
    assert first == again
    assert len(set(first)) == 5
    with operation("order-8"):
        assert key() not in first


def test_different_calls_need_not_come_in_the_same_order() -> None:
    with operation("order-7"):
        one = {path: key(path) for path in ("/a", "/b", "/c")}
    with operation("order-7"):
        assert {path: key(path) for path in ("/c", "/a", "/b")} == one


def test_nested_names_tell_equal_calls_apart() -> None:
    def lines(order: list[str]) -> dict[str, str]:
        found = {}
        with operation("order-7"):
            for line in order:
                with operation(line):
                    found[line] = key()
            found["outside"] = key()
        return found

    assert lines(["a", "b"]) == lines(["b", "a"])
    assert len(set(lines(["a", "b"]).values())) == 3
    with operation("order-7 / a"):
        assert key() not in lines(["a"]).values(), "names are framed, not joined"


def test_without_a_name_an_operation_holds_as_long_as_you_keep_it() -> None:
    one, other = operation(), operation()
    with one:
        first = key()
    with one:
        assert key() == first
    with other:
        assert key() != first
    with operation(one.name):
        assert key() == first


def test_outside_of_an_operation_each_call_gets_a_random_key() -> None:
    tokens = iter("xy")
    assert [identify("POST", "api", "/a", None, lambda: next(tokens)).key for _ in "xy"] == ["x", "y"]
    with operation("order-7"), pytest.raises(ZeroDivisionError):
        raise ZeroDivisionError
    assert identify("POST", "api", "/a", None, lambda: "z").key == "z", "an operation ends with its block"


def test_a_key_of_the_callers_is_kept() -> None:
    with operation("order-7"):
        found = identify("POST", "api", "/a", '"mine"', never)
        assert (found.key, found.own) == ('"mine"', False), "as it is: not every server knows both spellings"
        assert identify("POST", "api", "/a", "", never).own, "an empty one is none"


def test_threads_and_tasks_share_the_operation_they_were_started_in() -> None:
    found = []
    with operation("order-7"):
        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(lambda: found.append(key()),)) for _ in "123"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with operation("order-7"):
        assert sorted(found) == sorted(key() for _ in "123")


async def test_tasks_do_not_see_each_others_operations() -> None:
    met = asyncio.Barrier(2)

    async def one(name: str) -> str:
        with operation(name):
            await met.wait()
            return key()

    a, b = await asyncio.gather(one("a"), one("b"))
    assert a != b


def test_rotation_is_derived() -> None:
    assert rotate_key("k", 0) == "k"
    assert len({"k", rotate_key("k", 1), rotate_key("k", 2), rotate_key("j", 1)}) == 4
    assert rotate_key("k", 1) == rotate_key("k", 1)


@pytest.mark.parametrize("name", ["", "x" * 1025, 7])
def test_names_that_name_nothing(name: object) -> None:
    with pytest.raises(UsageError, match="operation"):
        operation(name)  # type: ignore[arg-type]  # that is what is tested


# The budget -------------------------------------------------------------------------------------


def test_the_budget_is_a_bucket() -> None:
    now = [0.0]
    budget = Budget(3, per_call=0.5, per_second=0.1)
    assert [budget.take(lambda: now[0]) for _ in range(4)] == [True, True, True, False]
    budget.give()
    assert not budget.take(lambda: now[0])
    budget.give()
    assert budget.take(lambda: now[0])
    now[0] = 10.0
    assert [budget.take(lambda: now[0]) for _ in range(2)] == [True, False]
    now[0] = 1e9
    assert [budget.take(lambda: now[0]) for _ in range(4)] == [True, True, True, False], "never more than it holds"
    now[0] = 0.0
    assert not budget.take(lambda: now[0]), "a clock that goes back gives nothing"


def test_an_impossible_budget() -> None:
    with pytest.raises(RetriesError, match="tokens"):
        Budget(-1)
