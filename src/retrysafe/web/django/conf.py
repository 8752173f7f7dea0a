"""The setting `RETRYSAFE`, checked, and the RetrySafe object made from it.

    RETRYSAFE = {
        "URL": "redis://…",                        # another store than the project's database
        "DATABASE": "default",                     # or: which of DATABASES holds the records
        "SAFE": "project.idempotency.safe",        # or: a RetrySafe object of your own (key ring, events)
        "NAMESPACE": "shop",                       # applications that share a store
        "SCOPE": "project.idempotency.account",    # callable(request) -> whose key it is; the user's pk unless given
        "POLICY": {"retention": 259200},           # fields of retrysafe.Policy, or a Policy
    }

Every option of the middlewares (retrysafe.web.settings.Options) may stand beside these, in capitals. A callable may be
given as such or as a dotted path. Without any of it the records live in `DATABASES["default"]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from django.conf import settings as django_settings  # type: ignore[import-untyped]  # Django ships no types
from django.db import connections  # type: ignore[import-untyped]
from django.utils.module_loading import import_string  # type: ignore[import-untyped]

from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.policy import Policy
from retrysafe.web.django.addresses import URLS
from retrysafe.web.settings import Options

Scope = Callable[[Any], Any]
"""callable(request) -> the account or tenant; `async` where the view is."""

OWN = frozenset({"URL", "DATABASE", "SAFE", "NAMESPACE", "SCOPE"})
OPTIONS = {name.upper(): name for name in Options.__annotations__}
_DOTTED = frozenset({"STATUS_SCOPE", "FINGERPRINT"})

_made: dict[tuple[str, str], RetrySafe] = {}


def given() -> Mapping[str, Any]:
    """The setting as it was written; names that mean nothing are refused."""
    found = getattr(django_settings, "RETRYSAFE", {})
    if not isinstance(found, Mapping):
        raise UsageError(f"RETRYSAFE = {found!r}: give a dict, for example {{'SCOPE': 'project.idempotency.account'}}")
    unknown = sorted(set(found) - OWN - set(OPTIONS))
    if unknown:
        raise UsageError(f"RETRYSAFE has no {unknown}; there are {', '.join(sorted({*OWN, *OPTIONS}))}")
    named = [name for name in ("URL", "DATABASE", "SAFE") if found.get(name)]
    if len(named) > 1:
        raise UsageError(f"RETRYSAFE gives {' and '.join(named)}; one of them says where the records are")
    return found


def safe() -> RetrySafe:
    """The project's RetrySafe object. One for each address: a test database is another store."""
    found = given()
    if found.get("SAFE"):
        own = resolved("SAFE", found["SAFE"])
        if not isinstance(own, RetrySafe):
            raise UsageError(f"RETRYSAFE['SAFE'] = {found['SAFE']!r} is {own!r}; give a RetrySafe object, or its path")
        return own
    address = store_url(), str(found.get("NAMESPACE", "default"))
    if address not in _made:
        _made[address] = RetrySafe(address[0], namespace=address[1])
    return _made[address]


def store_url() -> str:
    """Where the records are: `URL`, or the project's own database."""
    found = given()
    return str(found["URL"]) if found.get("URL") else database_url(database())


def database() -> str:
    """Which of DATABASES our migrations belong to."""
    return str(given().get("DATABASE", "default"))


def database_url(alias: str) -> str:
    """One of DATABASES as a store's URL. The store opens connections of its own: a claim that was rolled back together
    with the request's transaction would protect nothing."""
    if alias not in connections.settings:
        raise UsageError(f"RETRYSAFE['DATABASE'] = {alias!r}: DATABASES has {', '.join(connections.settings)}")
    connection = connections[alias]
    if connection.vendor not in URLS:
        raise UsageError(
            f"DATABASES[{alias!r}] is {connection.vendor}, for which there is no store; set RETRYSAFE['URL'] to "
            "postgresql://…, mysql://…, redis://… or sqlite:///…"
        )
    return URLS[connection.vendor](alias, connection.settings_dict)


def options() -> Options:
    """The middleware's options."""
    found = given()
    chosen: dict[str, Any] = {OPTIONS[name]: value for name, value in found.items() if name in OPTIONS}
    for name in _DOTTED & set(found):
        chosen[OPTIONS[name]] = resolved(name, found[name])
    if "policy" in chosen:
        chosen["policy"] = as_policy("POLICY", chosen["policy"])
    if "routes" in chosen:
        chosen["routes"] = {name: as_policy("ROUTES", value) for name, value in chosen["routes"].items()}
    return cast(Options, chosen)


def as_policy(where: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    try:
        return Policy().but(**value)
    except TypeError as error:
        raise UsageError(f"RETRYSAFE[{where!r}] = {value!r}: give the fields of retrysafe.Policy ({error})") from error


def default_scope() -> Scope:
    """Whose key it is where a view does not say."""
    found = given().get("SCOPE")
    return user_pk if found is None else cast(Scope, resolved("SCOPE", found))


def user_pk(request: Any) -> Any:
    """The authenticated user's primary key; nobody's is empty, which is refused."""
    user = getattr(request, "user", None)
    return user.pk if user is not None and user.is_authenticated else ""


def resolved(name: str, value: Any) -> Any:
    """What a dotted path leads to."""
    if not isinstance(value, str):
        return value
    try:
        return import_string(value)
    except ImportError as error:
        raise UsageError(f"RETRYSAFE[{name!r}] = {value!r} cannot be imported: {error}") from error
