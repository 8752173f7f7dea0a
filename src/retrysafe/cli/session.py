"""The store that a command works on: opened by URL, or through the application (`--app MODULE:SAFE`), which also reads
and writes what is encrypted. Actions go through `act`, which writes the audit row."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from retrysafe.cli.exits import CommandError, OutOfReach
from retrysafe.cli.settings import read_setting, require_url
from retrysafe.core.ops import Lookup, Op
from retrysafe.core.records import Record
from retrysafe.core.urls import safe_url
from retrysafe.engine.audit import AuditEntry, begin_audit, end_audit, renew_audit
from retrysafe.engine.drive import run
from retrysafe.errors import NotUncertain, RetrySafeError, StoreError, UsageError
from retrysafe.stores.base import Capabilities, Store
from retrysafe.stores.registry import open_store

NO_RECORD_ID = bytes(32)
"""The id of no record. The reply to its Lookup carries the store's time."""

DRIVER_LOGGERS = ("psycopg", "pymongo", "redis", "botocore", "asyncmy", "pymysql")
FILE_SCHEMES = ("sqlite", "duckdb")


class Session:
    """An open store, and the application whose records may be changed."""

    def __init__(
        self, store: Store, execute: Callable[[Op[Any]], Any], namespace: str, where: str, close: Callable[[], None]
    ) -> None:
        self.store = store
        self._execute = execute
        self.namespace = namespace
        self.where = where
        self.has_ring = False
        self._by_app = execute != store.execute
        self.close = close

    @property
    def capabilities(self) -> Capabilities:
        return self.store.capabilities

    def execute(self, op: Op[Any]) -> Any:
        return self._execute(op)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        if self._by_app:
            return [self._execute(op) for op in ops]  # the application encrypts one operation at a time
        return self.store.execute_many(ops)

    def read_time(self) -> int:
        """The store's time. Its clock decides which leases have lapsed."""
        return int(self.execute(Lookup(NO_RECORD_ID)).now)

    def run(self, flow: Any) -> Any:
        return run(flow, lambda op: self.execute(cast("Op[Any]", op)))

    @contextmanager
    def act(self, entry: AuditEntry) -> Iterator[Audit]:
        """Write the audit row, do the action, write what came of it."""
        now = self.read_time()
        try:
            row = self.run(begin_audit(self.namespace, entry, now))
        except StoreError as error:
            raise AuditNotWritten(str(error)) from error
        audit = Audit(self, row)
        try:
            yield audit
        except BaseException as error:
            audit.note_failure(error)
            raise
        self.run(end_audit(row, audit.outcome, audit.result))


class AuditNotWritten(OutOfReach):
    """The store took no audit row, so the action was not begun."""


class Audit:
    """The audit row of an action that is under way. What is put into `result` is stored with it."""

    def __init__(self, session: Session, row: Record) -> None:
        self._session, self.row = session, row
        self.outcome = "done"
        self.result: dict[str, Any] = {}

    @property
    def id(self) -> str:
        return self.row.id.hex()

    def keep_alive(self) -> None:
        self._session.run(renew_audit(self.row))

    def note_failure(self, error: BaseException) -> None:
        """The action failed. A store that is out of reach leaves the row open: it shows as uncertain later."""
        if isinstance(error, StoreError):
            return
        outcome = "refused" if isinstance(error, CommandError | UsageError | NotUncertain) else "failed"
        result = {**self.result, "error": type(error).__name__}
        with suppress(RetrySafeError):  # the first error is the one to show
            self._session.run(end_audit(self.row, outcome, result))


@contextmanager
def open_session(args: argparse.Namespace) -> Iterator[Session]:
    """The store of a command, closed at its end."""
    session = _open_app(args) if read_app(args) else _open_url(args)
    try:
        yield session
    finally:
        session.close()


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

    safe = load_safe(read_app(args))
    if getattr(args, "namespace", None) not in (None, safe.namespace):
        raise UsageError(f"--namespace {args.namespace!r}: the application's namespace is {safe.namespace!r}")
    session = Session(safe.store, safe.execute, safe.namespace, repr(safe), safe.close)
    session.has_ring = safe.sealed
    return session


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
    """A command that looks or acts creates no file: a mistyped path is an error."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in FILE_SCHEMES or not rest.startswith("/"):
        return
    from urllib.parse import unquote

    path = Path(unquote(rest[1:].partition("?")[0]))
    if rest[1:] and not path.is_file():
        raise OutOfReach(
            f"there is no file {str(path)!r}", f"check the path, or create the store: retrysafe migrate {safe_url(url)}"
        )


def make_entry(args: argparse.Namespace, action: str, records: tuple[str, ...] = (), **details: Any) -> AuditEntry:
    """The audit entry of a command. Raises UsageError without a reason."""
    because = (getattr(args, "because", None) or "").strip()
    if not because:
        raise UsageError(f"{action} changes records: say --because TEXT, the reason; it is stored in the audit row")
    return AuditEntry(action, find_actor(args), because, records, details)


def find_actor(args: argparse.Namespace) -> str:
    if getattr(args, "by", None):
        return str(args.by)
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
