"""The console, for the people who operate this."""

from __future__ import annotations

from retrysafe.console import Console, ConsoleRequest, Operator
from retrysafe.web.django import conf

OPERATORS = {"olga-token": "olga"}


def find_operator(request: ConsoleRequest) -> Operator | None:
    name = OPERATORS.get(request.headers.get("authorization", "").removeprefix("Bearer "))
    return Operator(name) if name else None


console = Console(conf.safe(), authenticate=find_operator)
