"""FastAPI: the OpenAPI document of an application. It is completed when it is made, so FastAPI need not know of the
key's header while it serves requests."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from retrysafe.engine.safe import RetrySafe
from retrysafe.policy import Policy
from retrysafe.web import asgi, openapi
from retrysafe.web.fastapi_dependency import build_mark
from retrysafe.web.fastapi_routes import find_route_protection, walk_routes
from retrysafe.web.openapi import EXTENSION, Json, ProtectionSpec
from retrysafe.web.routes import Route


def document(app: FastAPI, *, within: FastAPI | None = None) -> None:
    """Complete every document that `app.openapi` makes. Call it again after replacing `app.openapi`. `within` is the
    application that has the middleware, if this one is mounted in it."""
    if not isinstance(app.openapi, _OpenApiCompleter):
        app.openapi = _OpenApiCompleter(app, within or app, app.openapi)  # type: ignore[method-assign]


class _OpenApiCompleter:
    def __init__(self, app: FastAPI, outer: FastAPI, make: Callable[[], Json]) -> None:
        self._app = app
        self._outer = outer
        self._make = make
        self._last: Json | None = None

    def __call__(self) -> Json:
        schema = self._make()
        if schema is not self._last:
            self._last = complete_schema(schema, self._app, within=self._outer)
        return schema


def complete_schema(schema: Json, app: FastAPI, *, within: FastAPI | None = None) -> Json:
    """Complete one OpenAPI document: the operations of protected routes."""
    options, marks = _middleware_options(within or app), _list_marks(app)
    for method, path, operation in openapi.list_operations(schema):
        mark = _find_mark(operation) or marks.get((method, path))
        if mark is not None:
            problem = openapi.reference_problem(schema)
            openapi.describe_operation(operation, _build_protection_spec(mark, options, f"{method} {path}"), problem)
            _add_own_400(operation)
    for item in schema.get("paths", {}).values():
        _remove_mark(item.get("get", {}))
    return schema


def _add_own_400(operation: Json) -> None:
    """FastAPI answers 400 to an unreadable body, but does not document it. We document 400, so theirs must be added."""
    response = operation["responses"].get("400")
    if response is not None and "requestBody" in operation:
        detail = {"type": "object", "properties": {"detail": {"type": "string"}}}
        response["content"].setdefault("application/json", {"schema": detail})


def _list_marks(app: FastAPI) -> dict[tuple[str, str], Json]:
    """What is known of each protected route, by method and path."""
    marks = {}
    for prefix, route in walk_routes(app.routes):
        protection = find_route_protection(route)
        if protection is not None:
            for method in route.methods:
                marks[method, f"{prefix}{route.path_format}"] = build_mark(protection.policy, protection.strength)
    return marks


def _read_mark(parameter: Json) -> Any:
    return parameter.get("schema", {}).get(EXTENSION) if parameter.get("in") == "header" else None


def _find_mark(operation: Json) -> Json | None:
    return next((mark for mark in map(_read_mark, operation.get("parameters", ())) if mark is not None), None)


def _remove_mark(operation: Json) -> None:
    """Remove the header from a GET operation: a router's dependency is also on its GET routes, which claim nothing."""
    if "parameters" in operation:
        operation["parameters"] = [one for one in operation["parameters"] if _read_mark(one) is None]


def _build_protection_spec(mark: Json, options: Json, name: str) -> ProtectionSpec:
    policy = _policy_from_mark(mark) if "mode" in mark else _default_policy(options, name)
    common = {key: options[key] for key in ("codes", "header", "key_rule") if key in options}
    return ProtectionSpec(policy, mark["strength"], quota=options.get("quota") is not None, **common)


def _policy_from_mark(mark: Json) -> Policy:
    seconds = mark.get("retention_seconds")  # FastAPI leaves out what is None
    failures = (lambda status, exception: True) if mark["failures"] == "custom" else mark["failures"]
    retention = float("inf") if seconds is None else seconds
    return Policy(mode=mark["mode"], busy=mark["busy"], failures=failures, retention=retention)


def _default_policy(options: Json, name: str) -> Policy:
    listed = options.get("routes", {}).get(name)
    if isinstance(listed, Route | Policy):
        return listed.policy if isinstance(listed, Route) else listed
    safe: RetrySafe | None = options.get("safe")
    return options.get("policy") or (safe.policy if safe else None) or Policy()


def _middleware_options(app: FastAPI) -> Json:
    for added in app.user_middleware:
        made_by: Any = added.cls
        if inspect.isclass(made_by) and issubclass(made_by, asgi.IdempotencyMiddleware):
            return dict(added.kwargs)
    return {}
