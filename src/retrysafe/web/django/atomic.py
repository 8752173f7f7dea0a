"""`ATOMIC_REQUESTS`: the claim comes before the request's transaction, and the answer is stored after its commit.

Django opens that transaction around the whole view, decorators included. On SQLite a claim from inside it would wait
for the write lock its own request holds, or make the request's snapshot too old to write. So a protected view asks
Django to leave it alone, and opens the same transaction itself once the claim is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.db import connections, transaction  # type: ignore[import-untyped]  # Django ships no types

NON_ATOMIC_ATTRIBUTE = "_non_atomic_requests"


class NonAtomicMark(set[str]):
    """Django asks whether an alias is in here: each one is. What it really holds are those the developer named with
    `non_atomic_requests`, above or below our decorator."""

    def __contains__(self, alias: object) -> bool:
        return True

    def is_named_by_developer(self, alias: str) -> bool:
        return super().__contains__(alias)


def mark_non_atomic(view: Any, inner: Iterable[str] = ()) -> NonAtomicMark:
    """Mark a view. Outer decorators copy the mark along, so it is found on whatever the URLs name."""
    mark = NonAtomicMark(inner)
    setattr(view, NON_ATOMIC_ATTRIBUTE, mark)
    return mark


def mark_of(request: Any) -> NonAtomicMark:
    """The mark on the view the URLs name: a developer may have added to it there."""
    mark = getattr(getattr(request.resolver_match, "func", None), NON_ATOMIC_ATTRIBUTE, None)
    return mark if isinstance(mark, NonAtomicMark) else NonAtomicMark()


def wrap_in_transactions(call: Callable[..., Any], mark: NonAtomicMark, opened: str = "") -> Callable[..., Any]:
    """The call inside the transactions Django would have opened; `opened` is the alias of one that is open."""
    for alias, config in connections.settings.items():
        if config["ATOMIC_REQUESTS"] and alias != opened and not mark.is_named_by_developer(alias):
            call = transaction.atomic(using=alias)(call)
    return call
