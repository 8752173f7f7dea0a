"""Ids of workflows and keys of steps: stable, and never shared by two that differ."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from retrysafe import Key
from retrysafe.durable import derive_step_key, workflow_id
from retrysafe.durable.dbos import step_key
from retrysafe.durable.temporal import activity_key
from retrysafe.errors import UsageError

KEY = Key("k", "acct-1")


def test_a_workflow_id_is_the_same_for_ever() -> None:
    assert workflow_id(KEY, "order") == "order-3bd949442a00351ee4bb31c39a69b431467108a89373c265"


@pytest.mark.parametrize(
    ("key", "workflow"),
    [
        (Key("k2", "acct-1"), "order"),
        (Key("k", "acct-2"), "order"),
        (KEY, "refund"),
        (Key("k", "acct-1", "webhook"), "order"),
    ],
)
def test_another_key_tenant_kind_or_workflow_has_another_id(key: Key, workflow: str) -> None:
    assert workflow_id(key, workflow) != workflow_id(KEY, "order")


@pytest.mark.parametrize("name", ["", "x" * 65, "a\nb", None])
def test_a_name_that_cannot_be_one(name: Any) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(name))):
        workflow_id(KEY, name)


def test_a_plain_string_is_nobodys_key() -> None:
    with pytest.raises(UsageError, match="needs a Key, which says whose it is"):
        workflow_id("k", "order")  # type: ignore[arg-type]  # the mistake that is told


def test_places_are_framed() -> None:
    assert derive_step_key("dbos", ("1", "23"), "psp", "", False) != derive_step_key(
        "dbos", ("12", "3"), "psp", "", False
    )


# Temporal ---------------------------------------------------------------------------------------


def key_in(changes: dict[str, Any] | None = None, service: str = "psp", **options: Any) -> str:
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, **(changes or {}))
    made: str = environment.run(lambda: activity_key(service, **options))
    return made


def test_all_attempts_of_an_activity_have_one_key() -> None:
    assert key_in({"attempt": 1}) == key_in({"attempt": 7}) == key_in({"task_token": b"other"})
    assert re.fullmatch(r"[0-9a-f]{48}", key_in())


@pytest.mark.parametrize(
    "change", [{"activity_id": "2"}, {"workflow_id": "w2"}, {"workflow_run_id": "r2"}, {"namespace": "n2"}], ids=str
)
def test_another_activity_run_workflow_or_namespace_has_another(change: dict[str, Any]) -> None:
    assert key_in(change) != key_in()


def test_parts_services_and_undo_are_told_apart() -> None:
    assert len({key_in(), key_in(part="2"), key_in(service="sms"), key_in(undo=True), key_in(per="workflow")}) == 5


def test_per_workflow_survives_a_reset() -> None:
    reset = {"workflow_run_id": "after the reset"}
    assert key_in(reset, per="workflow") == key_in(per="workflow")
    assert key_in({"workflow_id": "w2"}, per="workflow") != key_in(per="workflow")


def test_an_activity_without_a_workflow_has_a_key_too() -> None:
    alone = {"workflow_id": None, "workflow_run_id": None, "activity_run_id": "r1"}
    assert key_in(alone) == key_in({**alone, "attempt": 2})
    assert key_in(alone) != key_in({**alone, "activity_run_id": "r2"})
    assert key_in(alone, per="workflow") == key_in({**alone, "activity_run_id": "r2"}, per="workflow")


def test_outside_an_activity_or_a_step_there_is_no_key() -> None:
    with pytest.raises(UsageError, match=r"activity_key\('psp'\) was called outside"):
        activity_key("psp")
    with pytest.raises(UsageError, match=r"step_key\('psp'\) was called outside"):
        step_key("psp")


def test_per_is_a_choice_of_two() -> None:
    with pytest.raises(UsageError, match="per='day'"):
        key_in(per="day")
