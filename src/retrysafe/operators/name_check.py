"""A namespace or a scope that no record has: mistyped, or new. Nothing found under it is no good news."""

from __future__ import annotations

from retrysafe.core.ops import List
from retrysafe.engine.audit import AUDIT_KIND
from retrysafe.operators.record_search import RecordSearch
from retrysafe.operators.session import Session

MAX_CHECKED_RECORDS = 10_000


def describe_unknown_name(session: Session, namespace: str | None, scope: str | None = None) -> str:
    """What to say if no record has this namespace and scope. Empty if one has, or none was given. It reads a bounded
    number of records, and says so if there are more."""
    if namespace is None and scope is None:
        return ""
    query = List(namespace, scope=scope, examine=MAX_CHECKED_RECORDS)
    search = RecordSearch(session.execute, query, MAX_CHECKED_RECORDS)
    if any(record.kind != AUDIT_KIND for record in search):
        return ""
    names = (("namespace", namespace), ("scope", scope))
    what = " and ".join(f"{name} {value!r}" for name, value in names if value is not None)
    among = f" among the first {search.examined:,}" if search.cursor else ""
    return f"there is no record of {what}{among}: check the spelling (`retrysafe keys list` shows the names)"
