"""Joining the user's own transaction: the work and its receipt commit together, or neither does."""

from __future__ import annotations

from retrysafe.stores.sql.receipts import same_database
from retrysafe.transactions.base import AsyncTx, AsyncTxSource, LockNotAvailable, Tx, TxSource
from retrysafe.transactions.block import Block
from retrysafe.transactions.run import arun, run
from retrysafe.transactions.sources import find_source
from retrysafe.transactions.tx_context import tables

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
