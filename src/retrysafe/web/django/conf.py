"""The setting `RETRYSAFE`: its checked values, the RetrySafe object made from it, and DATABASES as store URLs.

    RETRYSAFE = {
        "URL": "redis://…",                        # another store than the project's database
        "DATABASE": "default",                     # or: which of DATABASES holds the records
        "SAFE": "project.idempotency.safe",        # or: a RetrySafe object of your own (key ring, events)
        "NAMESPACE": "shop",                       # applications that share a store
        "SCOPE": "project.idempotency.account",    # callable(request) -> the principal; the user's pk unless given
        "POLICY": {"retention": 259200},           # fields of retrysafe.Policy, or a Policy
    }

Every option of the middlewares (retrysafe.web.settings.Options) may be added, in capitals. A callable may be given as
such or as a dotted path. Without the setting the records are in `DATABASES["default"]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlencode

from django.conf import settings as django_settings  # type: ignore[import-untyped]  # Django ships no types
from django.db import connections  # type: ignore[import-untyped]
from django.utils.module_loading import import_string  # type: ignore[import-untyped]

from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.policy import Policy
from retrysafe.web.settings import Options

Scope = Callable[[Any], Any]
"""callable(request) -> the account or tenant; `async` where the view is."""

OWN_SETTINGS = frozenset({"URL", "DATABASE", "SAFE", "NAMESPACE", "SCOPE"})
OPTIONS = {name.upper(): name for name in Options.__annotations__}
_DOTTED_SETTINGS = frozenset({"STATUS_SCOPE", "FINGERPRINT"})

_made: dict[tuple[str, str], RetrySafe] = {}


def read_setting() -> Mapping[str, Any]:
    """The setting as written. Raises UsageError for unknown names."""
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
    """The project's RetrySafe object. There is one for each store URL, because a test database is another store."""
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
    """The URL of the store: `URL`, or the project's own database."""
    found = read_setting()
    return str(found["URL"]) if found.get("URL") else database_url(database_alias())


def database_alias() -> str:
    """Which of DATABASES our migrations belong to."""
    return str(read_setting().get("DATABASE", "default"))


def database_url(alias: str) -> str:
    """One of DATABASES as a store URL. The store opens its own connections: a claim must not be rolled back together
    with the request's transaction."""
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
    """The callable that returns the principal if a view gives none."""
    found = read_setting().get("SCOPE")
    return read_user_pk if found is None else cast(Scope, import_dotted("SCOPE", found))


def read_user_pk(request: Any) -> Any:
    """The authenticated user's primary key; empty without a user, which is refused."""
    user = getattr(request, "user", None)
    return user.pk if user is not None and user.is_authenticated else ""


def import_dotted(name: str, value: Any) -> Any:
    """The object that a dotted path names."""
    if not isinstance(value, str):
        return value
    try:
        return import_string(value)
    except ImportError as error:
        raise UsageError(f"RETRYSAFE[{name!r}] = {value!r} cannot be imported: {error}") from error


# DATABASES as store URLs: an option that a URL cannot hold is refused, not left out -----------------

Config = Mapping[str, Any]

LIBPQ_OPTIONS = frozenset({
    "sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslcrl", "sslnegotiation", "channel_binding",
    "gssencmode", "krbsrvname", "passfile", "service", "target_session_attrs", "options", "application_name",
    "connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout",
})  # fmt: skip
"""The PostgreSQL OPTIONS that concern connecting to the server. The others concern Django's own connections."""

MYSQL_CONNECT_PREFIXES = ("ssl", "read_default_", "auth_", "server_public_key")
"""Prefixes of the MySQL OPTIONS that concern connecting to the server."""


def sqlite_url(alias: str, config: Config) -> str:
    name = str(config["NAME"])
    if name == ":memory:" or "mode=memory" in name:
        return f"memory://django-{alias}"  # Django's test database: cannot be shared, need not last
    return f"sqlite:///{quote(str(Path(name).absolute()))}"


def postgres_url(alias: str, config: Config) -> str:
    options = {name: str(value) for name, value in config.get("OPTIONS", {}).items() if name in LIBPQ_OPTIONS}
    host, port = _get_text(config, "HOST"), _get_text(config, "PORT")
    if host.startswith("/"):
        options.update({"host": host, "port": port} if port else {"host": host})
        host = port = ""
    return _server_url("postgresql", config, host, port, options)


def mysql_url(alias: str, config: Config) -> str:
    """Also for MariaDB: Django cannot distinguish the two before it is connected, and the store need not."""
    given = dict(config.get("OPTIONS", {}))
    host, port = _get_text(config, "HOST"), _get_text(config, "PORT")
    options = {}
    socket = given.pop("unix_socket", host if host.startswith("/") else "")
    if socket:
        options["socket"], host, port = str(socket), "", ""
    tls = given.get("ssl")
    if isinstance(tls, Mapping) and list(tls) == ["ca"]:
        options["ssl_ca"] = str(tls["ca"])
        del given["ssl"]
    unsupported = sorted(name for name in given if name.startswith(MYSQL_CONNECT_PREFIXES))
    if unsupported:
        raise UsageError(
            f"DATABASES[{alias!r}]['OPTIONS'] has {', '.join(unsupported)}, which a store's URL cannot hold; set "
            "RETRYSAFE['URL'], or RETRYSAFE['SAFE'] to a RetrySafe over a MysqlStore with a function that connects"
        )
    return _server_url("mysql", config, host if socket else host or "localhost", port, options)


URL_BUILDERS: dict[str, Callable[[str, Config], str]] = {
    "sqlite": sqlite_url,
    "postgresql": postgres_url,
    "mysql": mysql_url,
}
"""By Django's name of the database (`connection.vendor`)."""


def _server_url(scheme: str, config: Config, host: str, port: str, options: Mapping[str, str]) -> str:
    user, password = (quote(_get_text(config, name), safe="") for name in ("USER", "PASSWORD"))
    account = f"{user}:{password}@" if password else f"{user}@" if user else ""
    named = f"[{host}]" if ":" in host else host
    place = f"{named}:{port}" if port else named
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"{scheme}://{account}{place}/{quote(_get_text(config, 'NAME'), safe='')}{query}"


def _get_text(config: Config, name: str) -> str:
    return str(config.get(name) or "")
