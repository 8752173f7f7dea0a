"""A job is found by its key as a person writes it."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe.core.keys import Template
from retrysafe.errors import NotDone, UsageError
from retrysafe.jobs import QueueAdapter, job_id
from retrysafe.jobs.job_lookup import MAX_CANDIDATE_IDS, find_candidate_ids, iter_template_matches
from tests.jobs.test_fence import Shop


@pytest.fixture
def shop() -> Shop:
    return Shop()


def receipts(jobs: QueueAdapter, key: str = "receipt-{order_id}", **options: Any) -> Any:
    return jobs.fence(lambda order_id, part=0: f"receipt of {order_id!r}", name="receipt", key=key, **options)


@pytest.mark.parametrize("order", [7, "7", "a-7", 'with "quotes"', "x" * 200, -3])
async def test_a_tasks_own_key_is_asked_for_as_it_reads(shop: Shop, order: Any) -> None:
    task = receipts(shop.jobs)
    assert shop.jobs.state(f"receipt-{order}") == "absent"
    shop.enqueue(task, order)
    assert shop.jobs.state(f"receipt-{order}") == await shop.jobs.astate(f"receipt-{order}") == "waiting"
    with pytest.raises(NotDone):
        shop.jobs.result(f"receipt-{order}")
    shop.work(task)
    assert shop.jobs.result(f"receipt-{order}") == f"receipt of {order!r}"
    assert await shop.jobs.aresult(f"receipt-{order}") == f"receipt of {order!r}"
    assert shop.jobs.state(f"receipt-{order}") == "done"


def test_the_id_and_the_framed_key_work_too(shop: Shop) -> None:
    task = receipts(shop.jobs)
    enqueued = shop.enqueue(task, 7)
    shop.work(task)
    assert shop.jobs.result(enqueued.id) == shop.jobs.result("receipt-{7}") == "receipt of 7"


def test_a_key_that_is_somebodys_as_it_stands_is_theirs(shop: Shop) -> None:
    task, other = receipts(shop.jobs), shop.task()
    shop.enqueue(task, 7)
    shop.work(task)
    shop.enqueue(other, "o-7", key="receipt-7")
    shop.work(other)
    assert shop.jobs.result("receipt-7") == "receipt of o-7"


def test_a_number_and_a_text_are_two_jobs_and_one_is_told_so(shop: Shop) -> None:
    task = receipts(shop.jobs)
    ids = [shop.enqueue(task, order).id for order in (7, "7")]
    with pytest.raises(UsageError, match="may mean several jobs") as raised:
        shop.jobs.result("receipt-7")
    assert all(id in str(raised.value) for id in ids)
    assert [shop.jobs.state(id) for id in ids] == ["waiting"] * 2


def test_several_fields(shop: Shop) -> None:
    task = receipts(shop.jobs, key="{order_id}-part-{part}")
    shop.enqueue(task, "o-7", 2)
    shop.work(task)
    assert shop.jobs.result("o-7-part-2") == "receipt of 'o-7'"


@pytest.mark.parametrize(
    ("template", "text", "expected"),
    [
        ("receipt-{a}", "receipt-x", [{"a": "x"}]),
        ("receipt-{a}", "receipt-7", [{"a": 7}, {"a": "7"}]),
        ("receipt-{a}", "receipt-007", [{"a": "007"}]),
        ("receipt-{a}", "invoice-7", []),
        ("receipt-{a}", "receipt-", []),
        ("{a}:{b}!", "x:y:z!", [{"a": "x:y", "b": "z"}, {"a": "x", "b": "y:z"}]),
        ("{a}-{a}", "x-x", [{"a": "x"}]),
        ("{a}-{a}", "x-y", []),
        ("{{{a}}}", "{x}", [{"a": "x"}]),
    ],
)
def test_how_a_text_can_be_read(template: str, text: str, expected: list[dict[str, Any]]) -> None:
    assert list(iter_template_matches(Template.parse(template), text)) == expected


def test_not_every_reading_is_tried() -> None:
    found = find_candidate_ids("1" * 100, [Template.parse("{a}{b}{c}")])
    assert found[0] == job_id("1" * 100)
    assert len(found) <= MAX_CANDIDATE_IDS + 1


def test_a_text_made_to_be_read_in_many_ways_costs_little() -> None:
    text = "-".join("1" * 5000)
    assert len(find_candidate_ids(text, [Template.parse("{a}-{b}-{c}-{d}-{e}!")])) == 1
