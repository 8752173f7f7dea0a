"""Commands that a command tells its reader to give next. One place, so that each such line can be copied: it names the
application and the store, and quotes what a shell would read otherwise."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from retrysafe.core.urls import name_url
from retrysafe.engine.audit import AUDIT_KIND
from retrysafe.engine.resolving import RESULT_KINDS
from retrysafe.operators.record_search import DEFAULT_NAMESPACE

APP_PLACEHOLDER = "MODULE:SAFE"


class NamedStore(NamedTuple):
    """The store or the application that the reader's own command named. Both are empty if settings name the store:
    then the next command finds it by itself."""

    url: str = ""
    app: str = ""


NOTHING_NAMED = NamedStore()
_named: ContextVar[NamedStore] = ContextVar("retrysafe_named_store", default=NOTHING_NAMED)


@contextmanager
def name_store(url: str = "", app: str = "") -> Iterator[None]:
    """While this is open, commands are built with the store or the application that was an argument."""
    token = _named.set(NamedStore(name_url(url), app))
    try:
        yield
    finally:
        _named.reset(token)


def build_command(*words: Any, namespace: str = DEFAULT_NAMESPACE, then: str = "") -> str:
    """`retrysafe keys why 5f3a9c01 --id sqlite:///app.db --namespace shop`. The words are data, and quoted where
    needed; `then` is text for the reader (`--because TEXT`), printed as it is."""
    where = () if namespace == DEFAULT_NAMESPACE else ("--namespace", namespace)
    command = shlex.join(["retrysafe", *(str(word) for word in _add_store(words)), *where])
    return f"{command} {then}".rstrip()


def name_scope(scope: str) -> tuple[str, ...]:
    """`--scope acme`. In one word if the scope begins with a dash, or it would be read as an option."""
    return (f"--scope={scope}",) if scope.startswith("-") else ("--scope", scope)


def _add_store(words: tuple[Any, ...]) -> tuple[Any, ...]:
    url, app = _named.get()
    if APP_PLACEHOLDER in words:  # the application knows its store
        return tuple(app if app and word == APP_PLACEHOLDER else word for word in words)
    if url:
        return (*words, url)
    return (*words, "--app", app) if app else words


def describe_action(action: str, record_id: str, namespace: str, kind: str) -> str:
    """The whole command of an action, to be copied. `kind`: that of the record."""
    if action.startswith("operations"):  # the application knows its namespace
        left = "[--leave-effects] " if action in ("operations undo", "operations cancel") else ""
        return build_command(*action.split(), APP_PLACEHOLDER, record_id, "--id", then=f"{left}--because TEXT")
    given = "" if kind == AUDIT_KIND else " [--answer FILE]" if kind in RESULT_KINDS else " [--answer FILE --status N]"
    how = f"--happened{given} | --did-not-happen " if action == "keys resolve" else ""
    return build_command(*action.split(), record_id, "--id", namespace=namespace, then=f"{how}--because TEXT")
