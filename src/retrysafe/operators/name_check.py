"""A namespace or a scope that no record has: mistyped, or new. Nothing found under it is no good news."""

from __future__ import annotations

from retrysafe.core.ops import List
from retrysafe.engine.audit import AUDIT_KIND
from retrysafe.operators.record_search import RecordSearch
from retrysafe.operators.session import Session

MAX_CHECKED_RECORDS = 10_000


def describe_unknown_name(
    session: Session, namespace: str | None, scope: str | None = None, *, all_read: bool = False
) -> str:
    """What to say if no record has this namespace and scope. Empty if one has, or none was given. It reads a bounded
    number of records, and says so if there are more. `all_read`: the caller has read all records, and none has them."""
    if namespace is None and scope is None:
        return ""
    names = (("namespace", namespace), ("scope", scope))
    what = " and ".join(f"{name} {value!r}" for name, value in names if value is not None)
    told = f"there is no record of {what}"
    if not all_read:
        query = List(namespace, scope=scope, examine=MAX_CHECKED_RECORDS)
        search = RecordSearch(session.execute, query, MAX_CHECKED_RECORDS)
        if any(record.kind != AUDIT_KIND for record in search):
            return ""
        if search.cursor:
            told = f"{search.examined:,} records of the store were checked, and none is of {what}; there are more"
    return f"{told}: check the spelling (`retrysafe keys list` shows the names)"
