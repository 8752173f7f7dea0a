"""Which function answers which address. Actions are routes of their own, and a console without actions has none of
them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from retrysafe.console.messages import ConsoleResponse
from retrysafe.console.visit import Visit

Answerer = Callable[..., ConsoleResponse]


class ConsoleRoute(NamedTuple):
    method: str
    pattern: str
    """`/keys/{id}`: a name in braces is one part of the path."""
    answer: Answerer

    @property
    def acts(self) -> bool:
        return self.method == "POST"


class PageTable:
    def __init__(self, routes: Sequence[ConsoleRoute]) -> None:
        self.routes = tuple(routes)
        self._compiled = [(route, re.compile(_to_regex(route.pattern))) for route in routes]

    def find(self, method: str, path: str) -> tuple[ConsoleRoute, dict[str, str]] | None:
        wanted = "GET" if method == "HEAD" else method
        for route, pattern in self._compiled:
            match = pattern.fullmatch(path)
            if match and route.method == wanted:
                return route, match.groupdict()
        return None

    def answer(self, visit: Visit, found: tuple[ConsoleRoute, dict[str, str]]) -> ConsoleResponse:
        route, parts = found
        return route.answer(visit, **parts)


def _to_regex(pattern: str) -> str:
    return re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern)
