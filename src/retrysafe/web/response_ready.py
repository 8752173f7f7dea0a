"""How a claim that may not run gets past the application."""

from __future__ import annotations


class ResponseReady(Exception):
    """The application must not run: the exchange already holds the answer. Let it through, or turn it into any
    answer of your framework; the middleware sends the exchange's."""


def is_response_ready(error: BaseException) -> bool:
    """Whether this is, or wraps, a ResponseReady: frameworks wrap what passes through their task groups and views."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        if isinstance(one, ResponseReady):
            return True
        seen.add(id(one))
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions
    return False
