"""`ATOMIC_REQUESTS`: claim before the request's transaction, store the answer after its commit.

Django opens that transaction around the whole view, decorators included. On SQLite a claim inside it would wait for the
write lock that its own request holds, or would make the request's snapshot too old to write. So a protected view is
marked as non-atomic for Django, and our decorator opens the same transaction after the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.db import connections, transaction  # type: ignore[import-untyped]  # Django ships no types

NON_ATOMIC_ATTRIBUTE = "_non_atomic_requests"


class NonAtomicMark(set[str]):
    """For Django every alias is in this set. Its real members are the aliases that the developer named with
    `non_atomic_requests`, above or below our decorator."""

    def __contains__(self, alias: object) -> bool:
        return True

    def is_named_by_developer(self, alias: str) -> bool:
        return super().__contains__(alias)


def mark_non_atomic(view: Any, inner: Iterable[str] = ()) -> NonAtomicMark:
    """Mark a view. Outer decorators copy the mark, so it is also on the view that the URL configuration names."""
    mark = NonAtomicMark(inner)
    setattr(view, NON_ATOMIC_ATTRIBUTE, mark)
    return mark


def find_mark(request: Any) -> NonAtomicMark:
    """The mark on the view that the URL configuration names: the developer may have added aliases there."""
    mark = getattr(getattr(request.resolver_match, "func", None), NON_ATOMIC_ATTRIBUTE, None)
    return mark if isinstance(mark, NonAtomicMark) else NonAtomicMark()


def wrap_in_transactions(call: Callable[..., Any], mark: NonAtomicMark, opened: str = "") -> Callable[..., Any]:
    """The call, wrapped in the transactions that Django would have opened. The alias `opened` has one already."""
    for alias, config in connections.settings.items():
        if config["ATOMIC_REQUESTS"] and alias != opened and not mark.is_named_by_developer(alias):
            call = transaction.atomic(using=alias)(call)
    return call
