"""`manage.py check`: finds configuration errors before they reach production."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.conf import settings  # type: ignore[import-untyped]  # Django ships no types
from django.core import checks  # type: ignore[import-untyped]
from django.db import connections  # type: ignore[import-untyped]
from django.urls import get_resolver  # type: ignore[import-untyped]

from retrysafe.errors import RetrySafeError
from retrysafe.web.accepted_routes import is_accepting
from retrysafe.web.django import conf, schema

MIDDLEWARE = ("retrysafe.web.django.IdempotencyMiddleware", "retrysafe.web.django.middleware.IdempotencyMiddleware")

MAY_COME_BEFORE = (
    "django.middleware.security.SecurityMiddleware",
    "corsheaders.middleware.CorsMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
)
"""These neither change nor read a body, and the headers that they add are right for a replay, too."""


def register() -> None:
    checks.register(check_configuration)
    checks.register(check_middleware)
    checks.register(check_atomic_requests)
    checks.register(check_accepting, checks.Tags.urls)
    checks.register(check_durability, deploy=True)
    checks.register(check_tables, checks.Tags.database)


def check_configuration(app_configs: Any = None, **_: Any) -> list[Any]:
    """Check that the setting is valid and has a store."""
    try:
        conf.safe()
        conf.options()
        conf.default_scope()
    except RetrySafeError as error:
        return [
            checks.Error(str(error), hint="See the setting RETRYSAFE in the how-to for Django.", id="retrysafe.E001")
        ]
    return []


def check_middleware(app_configs: Any = None, **_: Any) -> list[Any]:
    """Check that the middleware is installed, and first, so that it stores what is really sent."""
    listed: Sequence[str] = settings.MIDDLEWARE
    place = next((at for at, name in enumerate(listed) if name in MIDDLEWARE), None)
    if place is None:
        return [
            checks.Error(
                "The middleware of retrysafe.web.django is not in MIDDLEWARE: every protected view fails.",
                hint=f"Put {MIDDLEWARE[0]!r} first in MIDDLEWARE.",
                id="retrysafe.E002",
            )
        ]
    before = [name for name in listed[:place] if name not in MAY_COME_BEFORE]
    if not before:
        return []
    return [
        checks.Warning(
            f"{', '.join(before)} comes before {listed[place]}: it changes answers after they are stored, and requests "
            "before they are captured.",
            hint="Put the middleware of retrysafe first in MIDDLEWARE.",
            id="retrysafe.W003",
        )
    ]


def check_atomic_requests(app_configs: Any = None, **_: Any) -> list[Any]:
    """SQLite has one write lock. `@idempotent` and the DRF mixin claim before the request's transaction, but below
    `@api_view` the transaction is already open."""
    return [
        checks.Warning(
            f"DATABASES[{alias!r}] is SQLite with ATOMIC_REQUESTS, and also holds the idempotency keys: a function "
            "view made with DRF's @api_view claims inside its own request's transaction and may wait for itself.",
            hint="Use a class with IdempotentMixin there, or a file of its own: RETRYSAFE = {'URL': 'sqlite:///…'}.",
            id="retrysafe.W004",
        )
        for alias in _aliases_in_use()
        if connections[alias].vendor == "sqlite" and connections[alias].settings_dict["ATOMIC_REQUESTS"]
    ]


def check_accepting(app_configs: Any = None, **_: Any) -> list[Any]:
    """A view whose own policy answers 202 needs a status URL, where its client finds the answer."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    try:
        options = conf.options()
    except RetrySafeError:
        return []  # E001 says why
    policy = options.get("policy")
    if "status_path" in options or "status_scope" in options or (policy is not None and policy.busy == "accepted"):
        return []
    return [
        checks.Warning(
            f"{route} answers 202 (busy='accepted') without a status URL: a client can only send the same key again.",
            hint="Set RETRYSAFE['STATUS_PATH'] or RETRYSAFE['STATUS_SCOPE'].",
            id="retrysafe.W007",
        )
        for route in _list_accepting(get_resolver().url_patterns)
    ]


def _list_accepting(patterns: Iterable[Any], prefix: str = "") -> Iterator[str]:
    for pattern in patterns:
        path = f"{prefix}{pattern.pattern}"
        if hasattr(pattern, "url_patterns"):
            yield from _list_accepting(pattern.url_patterns, path)
        elif is_accepting(pattern.callback):
            yield path


def check_durability(app_configs: Any = None, **_: Any) -> list[Any]:
    """Only with --deploy: a store in memory loses its records at each restart, and each process has its own."""
    try:
        store = conf.safe().store
    except RetrySafeError:
        return []  # E001 says why
    if store.capabilities.durable and store.capabilities.shared:
        return []
    return [
        checks.Error(
            f"The idempotency keys are in {store.capabilities.name}: they are lost with the process, and other "
            "processes do not see them. A retry after a deployment would run again.",
            hint="Set RETRYSAFE['URL'] to a database, or leave it out to use the project's own.",
            id="retrysafe.E005",
        )
    ]


def check_tables(app_configs: Any = None, databases: Iterable[str] | None = None, **_: Any) -> list[Any]:
    """Only where databases are checked (`manage.py check --database default`, `migrate`)."""
    found: list[Any] = []
    for alias in _aliases_in_use():
        if alias in (databases or ()):
            absent = schema.find_missing_tables(connections[alias])
            if absent:
                message = f"DATABASES[{alias!r}] has no tables {', '.join(absent)} for the idempotency keys."
                found.append(checks.Warning(message, hint="Run: manage.py migrate", id="retrysafe.W006"))
    return found


def _aliases_in_use() -> Iterator[str]:
    """The alias of the project's database that holds the records, if one does."""
    try:
        chosen = conf.read_setting()
        alias = conf.database_alias()
    except RetrySafeError:
        return
    elsewhere = chosen.get("URL") or chosen.get("SAFE") or alias not in connections.settings
    if not elsewhere and connections[alias].vendor in schema.DIALECTS:
        yield alias
