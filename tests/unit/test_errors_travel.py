"""Errors go through pickle: into a queue's result backend, a runtime's history, another process."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

from retrysafe import errors

SAMPLES: dict[str, Any] = {
    "value": 3,
    "since": 5,
    "first_seen": 5,
    "attempt": 2,
    "retry_after": 9,
    "record_id": b"\1",
    "began": 1_763_208_003_000_000,
    "wait": 2.5,
}
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RetrySafeError)]


def made(kind: type[errors.RetrySafeError]) -> errors.RetrySafeError:
    wanted = inspect.signature(kind.__init__).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in wanted):
        return kind("what happened; what to do")
    given = [parameter.name for parameter in wanted if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    return kind(*(SAMPLES.get(name, name) for name in given[1:]))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("travel", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"])
def test_an_error_arrives_as_it_left(kind: type[errors.RetrySafeError], travel: Any) -> None:
    left = made(kind)
    arrived = travel(left)
    assert type(arrived) is kind
    assert (str(arrived), arrived.args, vars(arrived)) == (str(left), left.args, vars(left))


def test_all_of_them_are_tried() -> None:
    assert len(KINDS) > 25
