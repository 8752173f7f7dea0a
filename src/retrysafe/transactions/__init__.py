"""Transactions on the user's own connection: the work and its receipt commit together, or neither does."""

from __future__ import annotations

from retrysafe.stores.base import LockNotAvailable
from retrysafe.stores.sql.receipts import same_database
from retrysafe.transactions.base import AsyncTx, AsyncTxSource, Tx, TxSource
from retrysafe.transactions.binding import tables
from retrysafe.transactions.block import Block
from retrysafe.transactions.run import arun, run
from retrysafe.transactions.sources import find_source

__all__ = [
    "AsyncTx",
    "AsyncTxSource",
    "Block",
    "LockNotAvailable",
    "Tx",
    "TxSource",
    "arun",
    "find_source",
    "run",
    "same_database",
    "tables",
]
