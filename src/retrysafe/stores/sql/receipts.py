"""The receipt: a completed record that commits together with the user's work, on the user's connection.

These are plans, as in plans.py: they do no I/O. The lock and the read are one round trip, the receipt is another, and
the user's own statements run between them.
"""

from __future__ import annotations

import hashlib
import secrets
from functools import lru_cache
from typing import Any, NamedTuple

from retrysafe.core.keys import frame
from retrysafe.core.moves import Grant, apply_grant, settle
from retrysafe.core.ops import Claim, ForgetMarker, LookupCommit
from retrysafe.core.records import Answer, Record, pack_tokens
from retrysafe.core.states import State
from retrysafe.errors import NotSameDatabase
from retrysafe.stores.base import Plan
from retrysafe.stores.sql import rows
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import TableNames
from retrysafe.stores.sql.plans import SqlPlans

MAX_READS = 3
"""How often a transaction reads its key again at its beginning because another claim was committed meanwhile."""


class LockedRead(NamedTuple):
    """What a transaction reads of its key when it begins."""

    locked: bool
    began: int
    install: str
    now: int
    record: Record | None
    claimed: bool = False
    """The record of a new key was written with the read."""
    committed_early: bool = False
    """An earlier transaction of this key has left its lock behind: it was committed by hand (MongoDB)."""


class TxMarker(NamedTuple):
    """How an open transaction is recognised later: by its number, or by a savepoint that ends with it. `marker` names
    the row that is visible to others only if the transaction was committed early, where that is how one can tell."""

    began: int
    savepoint: str = ""
    marker: bytes = b""
    claimed: bool = False
    """The record was written first, as a claim whose outcome is unknown. Others see it only after an early commit."""


class CommittedEarly(Exception):
    """The open transaction is not the one that began: the user's code has committed or rolled back meanwhile."""


class SqlReceipts:
    """The statements of one installation, in one driver's parameter style."""

    def __init__(self, dialect: Dialect, names: TableNames) -> None:
        self.plans = SqlPlans(dialect, names)
        self._texts = dialect.load(names)
        self._names = names
        self._dialect = dialect
        self._by_savepoint = dialect.began == "0"
        self._claims_with_read = "receipt_claim_or_read" in self._texts
        self._claims_first = self._claims_with_read or "receipt_claim" in self._texts

    def lock_and_read(self, claim: Claim) -> Plan[Statement, LockedRead]:
        """Try the lock and read the record. PostgreSQL also writes the record of a new key, in the same round trip."""
        values = {"id": claim.id, "lock": lock_number(self._names, claim.id), "now": claim.now}
        if self._claims_with_read:
            return (yield from self._claim_or_read(rows.claim_values(claim) | values))
        seen = yield Statement(self._texts["receipt_read"], values)
        locked, began, install, now, *row = seen[0]
        return LockedRead(bool(locked), began, install or "", now, None if row[0] is None else rows.read_record(row))

    def _claim_or_read(self, values: dict[str, Any]) -> Plan[Statement, LockedRead]:
        look = LockedRead(False, 0, "", 0, None)
        for _ in range(MAX_READS):
            seen = yield Statement(self._texts["receipt_claim_or_read"], values)
            locked, began, install, now, claimed, *row = seen[0]
            record = None if row[0] is None else rows.read_record(row)
            look = LockedRead(bool(locked), began, install or "", now, record, bool(claimed))
            if look.claimed or not look.locked or record is not None:
                return look
        return look._replace(locked=False)  # other claims are being committed or taken back

    @staticmethod
    def build_claimed_record(claim: Claim, look: LockedRead, grant: Grant) -> Record:
        """The record as a claim would have left it at the moment of the look."""
        return build_claimed_record(claim, look, grant)

    def mark_transaction(
        self, look: LockedRead | None = None, owner: bytes = b"", base: Record | None = None
    ) -> Plan[Statement, TxMarker]:
        """Remember which transaction this is. After `lock_and_read` PostgreSQL has told already.

        `base` is the record as a claim would have left it. It is written first where that shows an early commit
        (SQLite, PostgreSQL): the key is uncertain then, whatever becomes of this process.

        `owner` is the record's id. Where a row is the mark (MySQL), it is named after the owner, so an attempt finds
        what an earlier one committed too early, even if that process died: raises CommittedEarly."""
        if self._by_savepoint:
            marker = yield from self._insert_marker(owner)
            claimed = yield from self._claim_first(look, base)
            name = f"retrysafe_{secrets.token_hex(8)}"
            yield Statement(self._dialect.savepoint.format(name), {})
            return TxMarker(0, name, marker, claimed)
        # DuckDB keeps the index entries of deleted rows for a while, so there each transaction has a marker of its own.
        marker = yield from self._insert_marker(b"")
        if look is not None:
            return TxMarker(look.began, marker=marker, claimed=(yield from self._claim_first(look, base)))
        found = yield Statement(self._texts["receipt_began"], {})
        return TxMarker(found[0][0], marker=marker)

    def _claim_first(self, look: LockedRead | None, base: Record | None) -> Plan[Statement, bool]:
        """Write the record before the user's work, unless `lock_and_read` has done so."""
        if look is None or look.claimed or base is None or not self._claims_first:
            return look is not None and look.claimed
        values = receipt_values(base, look.now)
        if look.record is None:
            return bool((yield Statement(self._texts["receipt_claim"], values)))
        return bool((yield Statement(self._texts["receipt_reclaim"], values | _seen_values(look.record))))

    def _insert_marker(self, owner: bytes) -> Plan[Statement, bytes]:
        if "receipt_mark" not in self._texts:
            return b""
        marker = owner or secrets.token_bytes(16)
        if not (yield Statement(self._texts["receipt_mark"], {"marker": marker, "now": None})):
            raise CommittedEarly
        return marker

    def is_same_transaction(self, mark: TxMarker) -> Plan[Statement, bool]:
        """Whether the open transaction is the one that was marked. Ask once, last: it uses the mark up."""
        if not mark.savepoint:
            found = yield Statement(self._texts["receipt_whole"], {"began": mark.began})
            if found[0][0]:
                yield from self.forget_marker(mark.marker)
            return bool(found[0][0])
        try:
            yield Statement(self._dialect.release.format(mark.savepoint), {})
        except Exception as error:
            if self._dialect.no_savepoint not in str(error):
                raise
            return False
        yield from self.plans.forget_marker(ForgetMarker(mark.marker))
        return True

    def was_committed(self, mark: TxMarker) -> Plan[Statement, bool | None]:
        """Whether the marked transaction was committed, once nothing is open any more; None where nobody can tell."""
        return self.plans.lookup_commit(LookupCommit(mark.began, mark.marker))

    def forget_marker(self, owner: bytes) -> Plan[Statement, None]:
        """Delete the row that an early commit has left, once the record says so."""
        return self.plans.forget_marker(ForgetMarker(owner))

    def is_other_transaction(self, claim: Claim, mark: TxMarker) -> Plan[Statement, bool]:
        """Whether the open transaction is another one by now."""
        return not (yield from self.is_same_transaction(mark))

    def write_receipt(
        self, claim: Claim, look: LockedRead, grant: Grant, answer: Answer, mark: TxMarker
    ) -> Plan[Statement, Record | None]:
        """Insert the receipt, or replace the record that was read. None: another transaction changed the record
        meanwhile. Raises CommittedEarly if the open transaction is not the one that began."""
        if mark.savepoint and not (yield from self.is_same_transaction(mark)):
            raise CommittedEarly
        base = build_claimed_record(claim, look, grant)
        values = receipt_values(base, claim.now) | rows.answer_values(answer) | {"began": mark.began}
        if mark.claimed:
            done = yield Statement(self._texts["receipt_settle"], values)
        elif look.record is None:
            done = yield Statement(self._texts["receipt_insert"], values)
        else:
            done = yield Statement(self._texts["receipt_replace"], values | _seen_values(look.record))
        if done:
            if not mark.savepoint:
                yield from self.forget_marker(mark.marker)
            return settle(base, State.COMPLETED, done[0][0], "", answer)
        if not mark.savepoint and not (yield from self.is_same_transaction(mark)):
            raise CommittedEarly
        return None


@lru_cache(maxsize=64)
def load_receipts(dialect: Dialect, names: TableNames) -> SqlReceipts:
    """The receipts of an installation, built once per installation and parameter style."""
    return SqlReceipts(dialect, names)


@lru_cache(maxsize=64)
def fill_install_query(dialect: Dialect, names: TableNames) -> str:
    return dialect.fill(_INSTALL_QUERY, names)


def same_database(dialect: Dialect, names: TableNames, install: str) -> Plan[Statement, None]:
    """Raise NotSameDatabase unless the connection reads the same installation."""
    found = yield Statement(fill_install_query(dialect, names), {})
    other = str(found[0][0]) if found else ""
    if other != install:
        raise NotSameDatabase(install, other)


_INSTALL_QUERY = "SELECT value FROM {meta} WHERE name = 'install'"


def build_claimed_record(claim: Claim, look: LockedRead, grant: Grant) -> Record:
    """The record as a claim would have left it at the moment of the look."""
    return apply_grant(grant, look.record, claim, look.now)


def receipt_values(base: Record, now: int | None) -> dict[str, Any]:
    return {
        "id": base.id,
        "namespace": base.namespace,
        "kind": base.kind,
        "scope": base.scope,
        "key": base.key,
        "target": base.target,
        "fingerprint": str(base.fingerprint),
        "attempt": base.attempt,
        "token": base.token,
        "run": base.run,
        "input": base.input,
        "created": base.created,
        "started": base.started,
        "retention": base.retention,
        "tokens": pack_tokens((base.token, *base.ended)),
        "now": now,
    }


def _seen_values(record: Record) -> dict[str, Any]:
    return {"seen_attempt": record.attempt, "seen_token": record.token, "seen_state": record.state.value}


def lock_number(names: TableNames, record_id: bytes) -> int:
    """The number of a key's advisory lock. It depends on the table too, because users' own locks share the numbers."""
    digest = hashlib.sha256(frame("retrysafe-lock", names.keys, record_id)).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
