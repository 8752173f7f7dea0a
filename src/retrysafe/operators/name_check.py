"""A namespace or a scope that no record has: mistyped, or new. Nothing found under it is no good news."""

from __future__ import annotations

from retrysafe.core.keys import observed_namespace
from retrysafe.core.ops import List
from retrysafe.engine.audit import AUDIT_KIND
from retrysafe.operators.follow_up import build_command
from retrysafe.operators.record_search import RecordSearch
from retrysafe.operators.session import Session

MAX_CHECKED_RECORDS = 10_000
MAX_NEAR_RECORDS = 2_000
"""How many records are read to find a name like the one that was given."""


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
    meant = suggest_names(session, namespace, scope)
    listing = build_command("keys", "list")
    return f"{told}{meant or f': check the spelling (`{listing}` shows the names)'}"


def suggest_names(session: Session, namespace: str | None, scope: str | None) -> str:
    """`; did you mean 'acct-ann'?`, from a bounded number of records, or nothing. With a scope it is the scope that was
    mistyped, else the namespace."""
    near = find_near_names(session, namespace, scope)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def suggest_scope(session: Session, namespace: str, scope: str | None) -> str:
    """For a key that was not found: `; did you mean the scope 'acct-ann'?`. Nothing if a record has the scope that was
    given, or no other is like it. It reads a bounded number of records."""
    if scope is None:
        return ""
    for own in (namespace, observed_namespace(namespace)):
        query = List(own, scope=scope, examine=MAX_CHECKED_RECORDS)
        if any(record.kind != AUDIT_KIND for record in RecordSearch(session.execute, query, MAX_CHECKED_RECORDS)):
            return ""
    near = [each for each in find_near_names(session, namespace, scope) if each != scope]
    return f"; did you mean the scope {' or '.join(map(repr, near))}?" if near else ""


def find_near_names(session: Session, namespace: str | None, scope: str | None) -> list[str]:
    """At most two names of records that are like the one that was mistyped: the scope if there is one, else the
    namespace."""
    import difflib  # only where nothing was found

    wrong = namespace if scope is None else scope
    query = List(None if scope is None else namespace)
    found = dict.fromkeys(
        record.namespace if scope is None else record.scope
        for record in RecordSearch(session.execute, query, MAX_NEAR_RECORDS)
        if record.kind != AUDIT_KIND
    )
    names = {name.lower(): name for name in reversed(found)}
    return [names[each] for each in difflib.get_close_matches(str(wrong).lower(), list(names), 2)]
