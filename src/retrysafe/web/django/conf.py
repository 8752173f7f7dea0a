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
from retrysafe.web.django.database_urls import URL_BUILDERS
from retrysafe.web.settings import Options

Scope = Callable[[Any], Any]
"""callable(request) -> the account or tenant; `async` where the view is."""

OWN_SETTINGS = frozenset({"URL", "DATABASE", "SAFE", "NAMESPACE", "SCOPE"})
OPTIONS = {name.upper(): name for name in Options.__annotations__}
_DOTTED_SETTINGS = frozenset({"STATUS_SCOPE", "FINGERPRINT"})

_made: dict[tuple[str, str], RetrySafe] = {}


def read_setting() -> Mapping[str, Any]:
    """The setting as it was written; names that mean nothing are refused."""
    found = getattr(django_settings, "RETRYSAFE", {})
    if not isinstance(found, Mapping):
        raise UsageError(f"RETRYSAFE = {found!r}: give a dict, for example {{'SCOPE': 'project.idempotency.account'}}")
    unknown = sorted(set(found) - OWN_SETTINGS - set(OPTIONS))
    if unknown:
        raise UsageError(f"RETRYSAFE has no {unknown}; there are {', '.join(sorted({*OWN_SETTINGS, *OPTIONS}))}")
    named = [name for name in ("URL", "DATABASE", "SAFE") if found.get(name)]
    if len(named) > 1:
        raise UsageError(f"RETRYSAFE gives {' and '.join(named)}; one of them says where the records are")
    return found


def safe() -> RetrySafe:
    """The project's RetrySafe object. One for each address: a test database is another store."""
    found = read_setting()
    if found.get("SAFE"):
        own = import_dotted("SAFE", found["SAFE"])
        if not isinstance(own, RetrySafe):
            raise UsageError(f"RETRYSAFE['SAFE'] = {found['SAFE']!r} is {own!r}; give a RetrySafe object, or its path")
        return own
    address = store_url(), str(found.get("NAMESPACE", "default"))
    if address not in _made:
        _made[address] = RetrySafe(address[0], namespace=address[1])
    return _made[address]


def store_url() -> str:
    """Where the records are: `URL`, or the project's own database."""
    found = read_setting()
    return str(found["URL"]) if found.get("URL") else database_url(database_alias())


def database_alias() -> str:
    """Which of DATABASES our migrations belong to."""
    return str(read_setting().get("DATABASE", "default"))


def database_url(alias: str) -> str:
    """One of DATABASES as a store's URL. The store opens connections of its own: a claim that was rolled back together
    with the request's transaction would protect nothing."""
    if alias not in connections.settings:
        raise UsageError(f"RETRYSAFE['DATABASE'] = {alias!r}: DATABASES has {', '.join(connections.settings)}")
    connection = connections[alias]
    if connection.vendor not in URL_BUILDERS:
        raise UsageError(
            f"DATABASES[{alias!r}] is {connection.vendor}, for which there is no store; set RETRYSAFE['URL'] to "
            "postgresql://…, mysql://…, redis://… or sqlite:///…"
        )
    return URL_BUILDERS[connection.vendor](alias, connection.settings_dict)


def options() -> Options:
    """The middleware's options."""
    found = read_setting()
    chosen: dict[str, Any] = {OPTIONS[name]: value for name, value in found.items() if name in OPTIONS}
    for name in _DOTTED_SETTINGS & set(found):
        chosen[OPTIONS[name]] = import_dotted(name, found[name])
    if "policy" in chosen:
        chosen["policy"] = to_policy("POLICY", chosen["policy"])
    if "routes" in chosen:
        chosen["routes"] = {name: to_policy("ROUTES", value) for name, value in chosen["routes"].items()}
    return cast(Options, chosen)


def to_policy(where: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    try:
        return Policy().replace(**value)
    except TypeError as error:
        raise UsageError(f"RETRYSAFE[{where!r}] = {value!r}: give the fields of retrysafe.Policy ({error})") from error


def default_scope() -> Scope:
    """Whose key it is where a view does not say."""
    found = read_setting().get("SCOPE")
    return user_pk if found is None else cast(Scope, import_dotted("SCOPE", found))


def user_pk(request: Any) -> Any:
    """The authenticated user's primary key; nobody's is empty, which is refused."""
    user = getattr(request, "user", None)
    return user.pk if user is not None and user.is_authenticated else ""


def import_dotted(name: str, value: Any) -> Any:
    """What a dotted path leads to."""
    if not isinstance(value, str):
        return value
    try:
        return import_string(value)
    except ImportError as error:
        raise UsageError(f"RETRYSAFE[{name!r}] = {value!r} cannot be imported: {error}") from error
