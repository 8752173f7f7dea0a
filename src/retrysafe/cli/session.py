"""The store that a command works on: opened by URL, or through the application (`--app MODULE:SAFE`), which also reads
and writes what is encrypted. operators/session.py has what is done with it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from retrysafe.cli.settings import read_setting, require_url
from retrysafe.core.urls import name_url, safe_url
from retrysafe.engine.audit import AuditEntry
from retrysafe.errors import UsageError
from retrysafe.operators.errors import OutOfReach
from retrysafe.operators.follow_up import name_store
from retrysafe.operators.session import NO_RECORD_ID, Audit, AuditNotWritten, Reason, Session, open_on_safe
from retrysafe.stores.registry import find_backend, open_store

__all__ = ["NO_RECORD_ID", "Audit", "AuditNotWritten", "Session", "make_entry", "open_session", "read_reason"]

DRIVER_LOGGERS = ("psycopg", "pymongo", "redis", "botocore", "asyncmy", "pymysql")
FILE_SCHEMES = ("sqlite", "duckdb")
COMPANION_ENDS = ("-wal", "-shm", "-journal", ".wal")
"""Files that a database keeps beside its own."""
MAX_LISTED_FILES = 2_000
MIN_FILE_LIKENESS = 0.7


@contextmanager
def open_session(args: argparse.Namespace) -> Iterator[Session]:
    """The store of a command, closed at its end."""
    session = _open_app(args) if read_app(args) else _open_url(args)
    try:
        with name_given_store(args):
            yield session
    finally:
        session.close()


def name_given_store(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Commands that are suggested name the store or the application that was an argument of this one. What settings or
    a framework name is found without."""
    url, app = (
        "" if name in getattr(args, "defaults", ()) else getattr(args, name, None) or "" for name in ("url", "app")
    )
    return name_store("" if app else url, app)


def read_app(args: argparse.Namespace) -> str:
    """The application, if it was asked for. A URL on the command line goes before an application in a file."""
    if getattr(args, "app", None):
        return str(args.app)
    if getattr(args, "url", None) is not None or not hasattr(args, "app"):
        return ""
    found = read_setting(args, "app")
    return found.value if not read_setting(args, "url").value else ""


def _open_app(args: argparse.Namespace) -> Session:
    from retrysafe.cli.import_object import load_safe  # the application's own imports may take long

    quiet_drivers()
    safe = load_safe(read_app(args))
    if getattr(args, "namespace", None) not in (None, safe.namespace):
        raise UsageError(f"--namespace {args.namespace!r}: the application's namespace is {safe.namespace!r}")
    return open_on_safe(safe, safe.close)


def _open_url(args: argparse.Namespace) -> Session:
    url = require_url(args)
    check_file(url)
    quiet_drivers()
    store = open_store(url)
    return Session(store, store.execute, read_setting(args, "namespace").value, safe_url(url), store.close)


def quiet_drivers() -> None:
    """Keep drivers from printing what our own error says as well. Logging that somebody set up still has it."""
    import logging

    for name in DRIVER_LOGGERS:
        logging.getLogger(name).addHandler(logging.NullHandler())


def check_file(url: str) -> None:
    """A command that looks or acts creates no file, and no tables in a file that has none: a mistyped path is an error.
    Zeros of another database would look like good news."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in FILE_SCHEMES or not rest.startswith("/"):
        return
    from urllib.parse import unquote

    path = Path(unquote(rest[1:].partition("?")[0]))
    if path.is_dir() and rest[1:]:
        raise OutOfReach(f"{str(path)!r} is a folder", "point the URL at a file in it")
    if rest[1:] and not path.is_file():
        raise OutOfReach(
            f"there is no file {str(path)!r}{suggest_file(path)}",
            f"check the path, or create the store: retrysafe migrate {name_url(url)}",
        )
    check_tables(url, path)


def check_tables(url: str, path: Path) -> None:
    """Raise OutOfReach if this file is a database that has no tables of ours."""
    from retrysafe.stores.sql.schema_state import LooksForTables  # only for files

    backend = find_backend(url)
    if isinstance(backend, LooksForTables) and not backend.has_tables(url):
        raise OutOfReach(
            f"{path} has no tables of retrysafe ({backend.names(url).bare}_…)",
            f"check the path and ?table=, or create the store in it: retrysafe migrate {name_url(url)}",
        )


def suggest_file(path: Path) -> str:
    """`; did you mean 'app.db'?` if the folder has a file with a name like that, else nothing."""
    import difflib
    from itertools import islice

    try:
        names = [each.name for each in islice(path.parent.iterdir(), MAX_LISTED_FILES) if each.is_file()]
    except OSError:
        return ""
    names = [name for name in names if not name.endswith(COMPANION_ENDS)]
    like = difflib.get_close_matches(path.name, names, 1, MIN_FILE_LIKENESS)
    return f"; did you mean {str(path.with_name(like[0]))!r}?" if like else ""


def make_entry(args: argparse.Namespace, action: str, records: tuple[str, ...] = (), **details: Any) -> AuditEntry:
    """The audit entry of a command. Raises UsageError without a reason."""
    return read_reason(args, action).entry(action, records, **details)


def read_reason(args: argparse.Namespace, action: str) -> Reason:
    """Who gives the command, and why. Raises UsageError without a reason."""
    because = (getattr(args, "because", None) or "").strip()
    if not because:
        raise UsageError(f"{action} changes records: say --because TEXT, the reason; it is stored in the audit row")
    return Reason(find_actor(args), because)


def find_actor(args: argparse.Namespace) -> str:
    if getattr(args, "by", None):
        return str(args.by)
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
