"""Commands that a command tells its reader to give next. One place, so that each such line can be copied: it names the
application, and quotes what a shell would read otherwise."""

from __future__ import annotations

import shlex
from typing import Any

from retrysafe.engine.audit import AUDIT_KIND
from retrysafe.engine.resolving import RESULT_KINDS
from retrysafe.operators.record_search import DEFAULT_NAMESPACE


def build_command(*words: Any, namespace: str = DEFAULT_NAMESPACE, then: str = "") -> str:
    """`retrysafe keys why 5f3a9c01 --id --namespace shop`. The words are data, and quoted where needed; `then` is text
    for the reader (`--because TEXT`), printed as it is."""
    where = () if namespace == DEFAULT_NAMESPACE else ("--namespace", namespace)
    command = shlex.join(["retrysafe", *(str(word) for word in words), *where])
    return f"{command} {then}".rstrip()


def describe_action(action: str, record_id: str, namespace: str, kind: str) -> str:
    """The whole command of an action, to be copied. `kind`: that of the record."""
    if action.startswith("operations"):  # the application knows its namespace
        left = "[--leave-effects] " if action in ("operations undo", "operations cancel") else ""
        return build_command(*action.split(), "MODULE:SAFE", record_id, "--id", then=f"{left}--because TEXT")
    given = "" if kind == AUDIT_KIND else " [--answer FILE]" if kind in RESULT_KINDS else " [--answer FILE --status N]"
    how = f"--happened{given} | --did-not-happen " if action == "keys resolve" else ""
    return build_command(*action.split(), record_id, "--id", namespace=namespace, then=f"{how}--because TEXT")
