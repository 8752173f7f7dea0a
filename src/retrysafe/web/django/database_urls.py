"""One of Django's DATABASES as a store's URL. What cannot be said in one is refused, not left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from retrysafe.errors import UsageError

Config = Mapping[str, Any]

LIBPQ_OPTIONS = frozenset({
    "sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslcrl", "sslnegotiation", "channel_binding",
    "gssencmode", "krbsrvname", "passfile", "service", "target_session_attrs", "options", "application_name",
    "connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout",
})  # fmt: skip
"""What of a PostgreSQL's OPTIONS is about reaching the server. The rest is about Django's own connections."""

MYSQL_CONNECT_PREFIXES = ("ssl", "read_default_", "auth_", "server_public_key")
"""How those of a MySQL's OPTIONS begin."""


def sqlite_url(alias: str, config: Config) -> str:
    name = str(config["NAME"])
    if name == ":memory:" or "mode=memory" in name:
        return f"memory://django-{alias}"  # Django's own test database: it cannot be shared, nor need it last
    return f"sqlite:///{quote(str(Path(name).absolute()))}"


def postgres_url(alias: str, config: Config) -> str:
    options = {name: str(value) for name, value in config.get("OPTIONS", {}).items() if name in LIBPQ_OPTIONS}
    host, port = _get_text(config, "HOST"), _get_text(config, "PORT")
    if host.startswith("/"):
        options.update({"host": host, "port": port} if port else {"host": host})
        host = port = ""
    return _server_url("postgresql", config, host, port, options)


def mysql_url(alias: str, config: Config) -> str:
    """MariaDB's too: Django does not tell them apart before it is connected, and the store need not."""
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
    unsaid = sorted(name for name in given if name.startswith(MYSQL_CONNECT_PREFIXES))
    if unsaid:
        raise UsageError(
            f"DATABASES[{alias!r}]['OPTIONS'] has {', '.join(unsaid)}, which a store's URL cannot say; set "
            "RETRYSAFE['URL'], or RETRYSAFE['SAFE'] to a RetrySafe over a MysqlStore with a function that connects"
        )
    return _server_url("mysql", config, host if socket else host or "localhost", port, options)


URL_BUILDERS: dict[str, Callable[[str, Config], str]] = {
    "sqlite": sqlite_url,
    "postgresql": postgres_url,
    "mysql": mysql_url,
}
"""By what Django calls the database."""


def _server_url(scheme: str, config: Config, host: str, port: str, options: Mapping[str, str]) -> str:
    user, password = (quote(_get_text(config, name), safe="") for name in ("USER", "PASSWORD"))
    account = f"{user}:{password}@" if password else f"{user}@" if user else ""
    named = f"[{host}]" if ":" in host else host
    place = f"{named}:{port}" if port else named
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"{scheme}://{account}{place}/{quote(_get_text(config, 'NAME'), safe='')}{query}"


def _get_text(config: Config, name: str) -> str:
    return str(config.get(name) or "")
