"""Policy: defaults, refusals, presets, and which endings are final."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import List
from retrysafe.core.times import FOREVER_MICROS, SECOND_MICROS
from retrysafe.errors import PolicyError, StoredFailure
from retrysafe.policy import DAY, FOREVER, PRESETS, Policy


def test_the_defaults_of_the_design() -> None:
    assert {field.name: getattr(Policy(), field.name) for field in fields(Policy)} == {
        "mode": "required",
        "busy": "conflict",
        "wait": 30.0,
        "failures": "store",
        "invalid": "store",
        "abandoned": "uncertain",
        "start": "request",
        "retention": 24 * 3600.0,
        "lease": 60.0,
        "max_body": 1 << 20,
        "max_answer": 1 << 20,
    }
    assert Policy().heartbeat == 20


BAD: dict[str, list[Any]] = {
    "mode": ["strict", "", None, "REQUIRED", 1, []],
    "busy": ["fail", None, lambda status, error: True],
    "wait": [-1, -0.001, math.nan, math.inf, "30", None, True, timedelta(seconds=-1), -(10**400), 1j, []],
    "failures": ["keep", None, 500, ["store"]],
    "invalid": ["keep", None, lambda status, error: True],
    "abandoned": ["resume", None],
    "start": ["later", None],
    "retention": [0, 0.9, -1, math.nan, "1 day", None, False, timedelta(0), -math.inf],
    "lease": [0, 0.01, -1, math.nan, math.inf, "60", None, True],
    "max_body": [-1, 1.5, "1 MiB", None, True],
    "max_answer": [-1, 1.5, "1 MiB", None, False],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_named_with_its_fix(name: str, value: Any) -> None:
    with pytest.raises(PolicyError) as refused:
        Policy(**{name: value})
    message = str(refused.value)
    assert f"Policy({name}=" in message
    shown = value.total_seconds() if isinstance(value, timedelta) else value
    assert (str(value) if isinstance(value, int) and abs(value) > 10**300 else repr(shown)) in message or value is None
    assert any(word in message for word in ("choose one of", "give", "only retention"))


def test_every_field_has_its_bad_values_here() -> None:
    assert set(BAD) == {field.name for field in fields(Policy)}


def test_durations_may_be_timedeltas_or_whole_numbers() -> None:
    policy = Policy(wait=timedelta(milliseconds=1500), lease=timedelta(minutes=2), retention=3600)
    assert (policy.wait, policy.lease, policy.retention) == (1.5, 120.0, 3600.0)
    assert {type(value) for value in (policy.wait, policy.lease, policy.retention)} == {float}
    assert policy.lease_micros == 120 * SECOND_MICROS


def test_for_ever_and_longer() -> None:
    assert Policy(retention=math.inf).retention_micros == FOREVER_MICROS
    assert Policy(retention=10**400).retention_micros == FOREVER_MICROS
    assert Policy(lease=10**400).lease_micros == FOREVER_MICROS
    assert Policy(retention=timedelta.max).retention_micros == FOREVER_MICROS


def test_it_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Policy().lease = 5.0  # type: ignore[misc]  # that it is read-only is what is tested
    with pytest.raises(TypeError):
        Policy("required")  # type: ignore[misc]  # that it takes keywords only is what is tested


def test_but_changes_some_fields_and_checks_them() -> None:
    policy = Policy(lease=10).replace(busy="wait")
    assert (policy.lease, policy.busy) == (10, "wait")
    with pytest.raises(PolicyError, match="lease"):
        policy.replace(lease=-1)


def test_but_with_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(PolicyError) as refused:
        Policy().replace(leese=5)
    assert "Policy(leese=5)" in str(refused.value)
    assert "lease" in str(refused.value)


def test_presets() -> None:
    assert Policy.preset("stripe_v1") == Policy(invalid="withdraw")
    assert [name for name, policy in PRESETS.items() if policy.invalid == "withdraw"] == ["stripe_v1", "stripe_v2"]
    assert Policy.preset("ietf").failures == "store"
    assert Policy.preset("create_payment", lease=5).replace(lease=60) == Policy(failures="release", retention=3 * DAY)
    assert (Policy.preset("function").retention, Policy.preset("function").busy) == (math.inf, "wait")
    assert set(PRESETS) == {"stripe_v1", "stripe_v2", "ietf", "create_payment", "function"}


def test_an_unknown_preset_lists_the_presets() -> None:
    with pytest.raises(PolicyError) as refused:
        Policy.preset("paypal")
    assert "'paypal'" in str(refused.value)
    assert all(name in str(refused.value) for name in PRESETS)


FINAL = {
    #               200    299    301    404    500    503    exception
    "store": (True, True, True, True, True, True, True),
    "release": (True, True, True, True, False, False, False),
    "success_only": (True, True, False, False, False, False, False),
}


@pytest.mark.parametrize("failures", FINAL)
def test_which_endings_are_final(failures: Any) -> None:
    policy = Policy(failures=failures)
    by_status = [policy.final(status, None) for status in (200, 299, 301, 404, 500, 503)]
    assert (*by_status, policy.final(500, ValueError())) == FINAL[failures]


def test_an_exception_is_not_final_whatever_status_it_carries() -> None:
    assert not Policy(failures="release").final(404, ValueError())
    assert not Policy(failures="success_only").final(200, ValueError())


def test_a_callable_decides_and_its_answer_is_a_bool() -> None:
    policy = Policy(failures=lambda status, error: [] if error else [status])  # type: ignore[arg-type,return-value]  # truthy
    assert policy.final(418, None) is True
    assert policy.final(500, ValueError()) is False


@pytest.mark.parametrize(
    ("given", "kept"), [(Policy(lease=120), FOREVER), (Policy(retention=DAY), DAY), (None, FOREVER)]
)
def test_functions_and_operations_keep_their_keys_for_ever_unless_told_how_long(
    given: Policy | None, kept: float
) -> None:
    """A policy that only sets the lease is no reason to forget `charge-order-4127` after a day."""
    with RetrySafe("memory://") as safe:
        assert safe.operation("charge", policy=given).policy.retention == kept

        @safe.once(key="charge-{order}", policy=given)
        def charge(order: str) -> str:
            return order

        charge("7")
        (record,) = safe.store.execute(List()).records
        assert (record.expires == FOREVER_MICROS) is (kept == FOREVER)


@pytest.mark.parametrize(
    ("given", "kept"), [(Policy(lease=120), False), (Policy(failures="store"), True), (None, False)]
)
def test_the_exception_of_a_function_is_no_result_unless_the_policy_says_so(given: Policy | None, kept: bool) -> None:
    calls: list[int] = []
    with RetrySafe("memory://") as safe:

        @safe.once(key="charge-{order}", policy=given)
        def charge(order: str) -> str:
            calls.append(1)
            raise ConnectionError("no answer")

        for _ in range(2):
            with pytest.raises((ConnectionError, StoredFailure)):
                charge("7")
        assert len(calls) == (1 if kept else 2)
