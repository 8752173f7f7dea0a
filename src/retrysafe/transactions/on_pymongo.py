"""Adapter for pymongo: clients and sessions, sync and async. The handle is the session: pass it to every call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from pymongo import AsyncMongoClient, MongoClient, ReadPreference, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.client_session import ClientSession
from pymongo.read_concern import ReadConcern

from retrysafe.errors import NestedTransaction
from retrysafe.stores.mongo.client import CODEC
from retrysafe.stores.mongo.errors import find_reply_error
from retrysafe.stores.mongo.plans import MongoCommand
from retrysafe.stores.mongo.receipts import MONGO
from retrysafe.stores.mongo.settings import WRITE_CONCERN_TIMEOUT_MS
from retrysafe.stores.sql.receipts import CommittedEarly
from retrysafe.transactions.base import DialectName

NESTED_FIX = "commit or abort first, or pass the client"

OPTIONS: dict[str, Any] = {
    "read_concern": ReadConcern("snapshot"),
    "write_concern": WriteConcern("majority", wtimeout=WRITE_CONCERN_TIMEOUT_MS, j=True),
    "read_preference": ReadPreference.PRIMARY,
}
"""A receipt, and the work that commits with it, is as durable as a claim (I10)."""


class PymongoTx:
    dialect = MONGO
    dialect_name: DialectName = "mongodb"

    def __init__(self, session: ClientSession) -> None:
        self.handle = session
        self._number: int | None = None

    @property
    def committed(self) -> bool | None:
        return has_other_number(self.handle, self._number)

    def send(self, command: MongoCommand) -> Mapping[str, Any]:
        database = self.handle.client.get_database(command.database, codec_options=CODEC)
        session = None if command.outside else require_open(self.handle)
        reply = check_reply(database.command(build_command_body(command), codec_options=CODEC, session=session))
        self._number = self._number or read_transaction_number(self.handle)  # there from the first command on
        return reply

    def flush(self) -> None:
        """A session has no pending writes."""


class AsyncPymongoTx:
    dialect = MONGO
    dialect_name: DialectName = "mongodb"

    def __init__(self, session: AsyncClientSession) -> None:
        self.handle = session
        self._number: int | None = None

    @property
    def committed(self) -> bool | None:
        return has_other_number(self.handle, self._number)

    async def send(self, command: MongoCommand) -> Mapping[str, Any]:
        database = self.handle.client.get_database(command.database, codec_options=CODEC)
        session = None if command.outside else require_open(self.handle)
        reply = check_reply(await database.command(build_command_body(command), codec_options=CODEC, session=session))
        self._number = self._number or read_transaction_number(self.handle)
        return reply

    async def flush(self) -> None:
        """A session has no pending writes."""


def read_transaction_number(session: Any) -> int | None:
    """The number of the session's last transaction or retryable write. None if pymongo does not show it."""
    return getattr(getattr(session, "_server_session", None), "transaction_id", None)


def has_other_number(session: Any, number: int | None) -> bool | None:
    """True if the session was used for something else since: the user's code has ended our transaction, and what came
    after it may have been committed. None if not."""
    now = read_transaction_number(session)
    return True if number is not None and now is not None and now != number else None


def require_open(session: Any) -> Any:
    """The session, if its transaction is still open. Raises CommittedEarly otherwise: our command would run outside of
    a transaction."""
    if not session.in_transaction:
        raise CommittedEarly
    return session


def build_command_body(command: MongoCommand) -> dict[str, Any]:
    """The command without its write concern: in a transaction only the commit has one."""
    return {name: value for name, value in command.body.items() if name != "writeConcern"}


def check_reply(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    problem = find_reply_error(reply)
    if problem is not None:
        raise problem
    return reply


@contextmanager
def begin_on_session(given: ClientSession) -> Iterator[PymongoTx]:
    if given.in_transaction:
        raise NestedTransaction("the pymongo ClientSession", NESTED_FIX)
    with given.start_transaction(**OPTIONS):
        yield PymongoTx(given)


@asynccontextmanager
async def abegin_on_session(given: AsyncClientSession) -> AsyncIterator[AsyncPymongoTx]:
    if given.in_transaction:
        raise NestedTransaction("the pymongo AsyncClientSession", NESTED_FIX)
    async with await given.start_transaction(**OPTIONS):
        yield AsyncPymongoTx(given)


@contextmanager
def begin_on_client(given: MongoClient[Any]) -> Iterator[PymongoTx]:
    with given.start_session() as opened, begin_on_session(opened) as tx:
        yield tx


@asynccontextmanager
async def abegin_on_client(given: AsyncMongoClient[Any]) -> AsyncIterator[AsyncPymongoTx]:
    async with given.start_session() as opened, abegin_on_session(opened) as tx:
        yield tx
