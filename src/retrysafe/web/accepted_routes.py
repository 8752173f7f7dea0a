"""Routes whose own policy answers 202 (`busy="accepted"`): they are found when the application is set up.

A policy of the middleware is known to the middleware. One that a decorator, guard or dependency brings is not, so these
leave a mark on the view. Where a framework knows all its routes, they are looked through, and a route that would answer
202 without a status URL is named in the log before its first client waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, TypeVar

from retrysafe.policy import Policy
from retrysafe.web.settings import Settings

V = TypeVar("V")

MAX_WARNED_TARGETS = 100
_MARK = "_retrysafe_accepts"
_log = logging.getLogger("retrysafe.web")


def mark_accepting(view: V, policy: Policy | None) -> V:
    """Mark a protected view whose own policy answers 202. `functools.wraps` hands the mark on to decorators above."""
    if policy is not None and policy.busy == "accepted":
        setattr(view, _MARK, True)
    return view


def is_accepting(view: Any) -> bool:
    return getattr(view, _MARK, False) is True


def warn_without_status(settings: Settings, targets: Iterable[str]) -> None:
    """Log each of these routes, which answer 202, unless there is a status URL or it was logged already."""
    for target in () if settings.serves_status else targets:
        if target not in settings.warned_targets and len(settings.warned_targets) < MAX_WARNED_TARGETS:
            settings.warned_targets.add(target)
            _log.warning(
                "%s answers 202 (busy='accepted' or start='worker') without a status URL, because the middleware was "
                "made without one; give it status_path= or status_scope=, or clients can only send the same key again",
                target,
            )
