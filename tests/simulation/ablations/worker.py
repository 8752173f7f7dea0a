"""The worker, and the walls between applications."""

from __future__ import annotations

from typing import Any

from retrysafe.operations.operation import Operation
from retrysafe.worker import completer
from tests.simulation.ablations.base import Ablation, Situation, calm, substitute
from tests.simulation.scenarios.walls import WALLS

WALL = "I34 namespaces are walls"


def list_everything(original: Any) -> Any:
    def make(namespace: Any = None, *args: Any, **kwargs: Any) -> Any:
        return original(None, *args, **kwargs)

    return make


def look_up_anything(original: Any) -> Any:
    def look_up_own(self: Any, record_id: bytes) -> Any:
        from retrysafe.core.ops import Lookup

        seen = yield Lookup(record_id)
        return seen.record, seen.now

    return look_up_own


ABLATIONS = (
    Ablation(
        "the completer knows no namespaces",
        WALL,
        substitute(completer, "List", list_everything),
        Situation(WALLS, ("theirs",), calm(crashes=4, reply_lost=0.3, request_lost=0.3, slow=0.2, tick=5.0)),
    ),
    Ablation(
        "an operator's resume knows no namespaces",
        WALL,
        substitute(Operation, "_look_up_own", look_up_anything),
        Situation(WALLS, ("theirs",), calm(crashes=4, reply_lost=0.2, slow=0.3)),
    ),
)
