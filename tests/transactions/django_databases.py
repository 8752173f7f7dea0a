"""Databases for Django that come and go with a test. Whatever Django was set up with before is put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4


@contextmanager
def django_alias(url: str, timeout: float) -> Iterator[str]:
    """The alias of a database that exists inside the block. Its connections are per thread, as always in Django."""
    from django.conf import empty, settings
    from django.db import connections

    ours = not settings.configured
    if ours:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    alias = f"t{uuid4().hex[:8]}"
    wanted = {"default": {}, alias: described(url, timeout)}
    connections.settings[alias] = connections.configure_settings(wanted)[alias]
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]
        if ours:
            settings._wrapped = empty
            connections.__dict__.pop("settings", None)


def close_alias(alias: str) -> None:
    """This thread's connection."""
    from django.db import connections

    connections[alias].close()


def described(url: str, timeout: float) -> dict[str, Any]:
    if url.startswith("sqlite"):
        path = url.partition("///")[2]
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "OPTIONS": {"timeout": timeout}}
    parts = urlsplit(url)
    mysql = url.startswith(("mysql", "mariadb"))
    if mysql:
        import pymysql

        pymysql.install_as_MySQLdb()  # Django asks for mysqlclient, which has to be compiled
    return {
        "ENGINE": f"django.db.backends.{'mysql' if mysql else 'postgresql'}",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username,
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname,
        "PORT": str(parts.port),
    }
