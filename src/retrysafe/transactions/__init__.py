"""Joining the user's own transaction: the work and its receipt commit together, or neither does."""

from __future__ import annotations

from retrysafe.stores.sql.receipts import same_database
from retrysafe.transactions.base import AsyncTx, AsyncTxSource, Held, Tx, TxSource
from retrysafe.transactions.block import Block
from retrysafe.transactions.place import tables
from retrysafe.transactions.run import arun, run
from retrysafe.transactions.sources import source

__all__ = [
    "AsyncTx",
    "AsyncTxSource",
    "Block",
    "Held",
    "Tx",
    "TxSource",
    "arun",
    "run",
    "same_database",
    "source",
    "tables",
]
