"""The framework's application that an ASGI middleware is inside of, or around.

Some facts are known to the application only: its routes, and whether its framework refuses requests before any endpoint
is entered. An adapter's middleware needs them. The bare one does not understand them, and says so if this matters.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from retrysafe.web.settings import Settings

MAX_NESTED = 64
ADAPTERS = {
    ("fastapi", "FastAPI"): "retrysafe.web.fastapi",
    ("starlette", "Starlette"): "retrysafe.web.starlette",
    ("litestar", "Litestar"): "retrysafe.web.litestar",
    ("quart", "Quart"): "retrysafe.web.quart",
}
"""Package and class of an application, and the adapter for it."""

_log = logging.getLogger("retrysafe.web")


def list_inner(app: Any) -> list[Any]:
    """The application, and all that it is wrapped around, as far as middleware keep that in `app`."""
    found = [app]
    while (inner := getattr(found[-1], "app", None)) is not None and len(found) < MAX_NESTED:
        found.append(inner)
    return found


def list_applications(scope: Mapping[str, Any], inner: Any) -> list[Any]:
    """What may be the framework's application: what the middleware is around comes first, then what it is inside of."""
    outer = scope.get("app")
    return [*list_inner(inner), *([] if outer is None else [outer])]


def find_routes(apps: Iterable[Any]) -> Iterable[Any]:
    """The routes of the first application that has any."""
    return next((routes for app in apps if (routes := getattr(app, "routes", None))), ())


def name_adapter(app: Any) -> str:
    """The adapter for an application; empty for one of no framework that we know."""
    names = ((kind.__module__.partition(".")[0], kind.__name__) for kind in type(app).__mro__)
    return next((ADAPTERS[name] for name in names if name in ADAPTERS), "")


def warn_unseen_refusals(settings: Settings, apps: Iterable[Any]) -> None:
    """Log that `invalid="withdraw"` has no effect here, if an adapter for the application would give it one."""
    if not any(policy.invalid == "withdraw" for policy in settings.routes.list_policies()):
        return
    adapter = next(filter(None, map(name_adapter, apps)), "")
    if adapter:
        _log.warning(
            "invalid='withdraw' has no effect: retrysafe.web.asgi does not see what %s refuses before an endpoint, so "
            "a refusal is stored; use %s.IdempotencyMiddleware or its install(), or set invalid='store'",
            adapter.rpartition(".")[2],
            adapter,
        )
