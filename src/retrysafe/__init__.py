"""retrysafe makes every write safe to retry: the public names. Start with `RetrySafe`; docs/ explains the rest."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrysafe import errors as errors
    from retrysafe.core.keys import Key, derive
    from retrysafe.core.records import Answer
    from retrysafe.engine.heartbeat import Lease, current_lease
    from retrysafe.engine.new_keys import new_key
    from retrysafe.engine.safe import RetrySafe
    from retrysafe.engine.sealing import KeyRing
    from retrysafe.errors import RetrySafeError
    from retrysafe.operations import Stop, Undo, stage
    from retrysafe.policy import Policy
    from retrysafe.stores.registry import open_async_store, open_store
    from retrysafe.web.asgi import IdempotencyMiddleware
    from retrysafe.worker import Worker

__all__ = [
    "Answer",
    "IdempotencyMiddleware",
    "Key",
    "KeyRing",
    "Lease",
    "Policy",
    "RetrySafe",
    "RetrySafeError",
    "Stop",
    "Undo",
    "Worker",
    "current_lease",
    "derive",
    "new_key",
    "open_async_store",
    "open_store",
    "stage",
]

__version__ = "0.1.0"


_HOMES = {
    "Answer": "retrysafe.core.records",
    "IdempotencyMiddleware": "retrysafe.web.asgi",
    "Key": "retrysafe.core.keys",
    "KeyRing": "retrysafe.engine.sealing",
    "Lease": "retrysafe.engine.heartbeat",
    "Policy": "retrysafe.policy",
    "RetrySafe": "retrysafe.engine.safe",
    "RetrySafeError": "retrysafe.errors",
    "Stop": "retrysafe.operations",
    "Undo": "retrysafe.operations",
    "Worker": "retrysafe.worker",
    "current_lease": "retrysafe.engine.heartbeat",
    "derive": "retrysafe.core.keys",
    "new_key": "retrysafe.engine.new_keys",
    "open_async_store": "retrysafe.stores.registry",
    "open_store": "retrysafe.stores.registry",
    "stage": "retrysafe.operations",
}
"""Public names, and the modules that define them."""

_ELSEWHERE = {
    "AsyncRetrySafe": "`from retrysafe import RetrySafe`, which serves sync and async code",
    "Client": "`from retrysafe.client.httpx import RetryTransport` (for requests: RetryAdapter)",
    "Console": "`from retrysafe.console import Console`",
    "IdempotencyKey": "`from retrysafe import Key`",
    "Inbox": "`from retrysafe.consumers import Inbox`",
    "Outbox": "`from retrysafe import stage`, which puts a job into the outbox",
    "Retries": "`from retrysafe.client import Retries`",
    "RetrySafeMiddleware": "`from retrysafe import IdempotencyMiddleware`",
    "Retrysafe": "`from retrysafe import RetrySafe`",
    "Saga": "`safe.operation`, with safe = RetrySafe(URL): a saga is an operation whose steps have an undo",
    "idempotent": "`from retrysafe.fastapi import idempotent` (also in .starlette, .litestar, .quart, .django)",
    "install": "`from retrysafe.fastapi import install` (also in .litestar, .quart)",
    "once": "`safe.once`, with safe = RetrySafe(URL)",
    "operation": "`safe.operation`, with safe = RetrySafe(URL)",
    "step": "`safe.operation`, with safe = RetrySafe(URL): the operation declares its steps",
    "transaction": "`safe.transaction`, with safe = RetrySafe(URL)",
    "transactional": "`safe.transactional`, with safe = RetrySafe(URL)",
}
"""Names that people look for here, and how they are written."""


def __getattr__(name: str) -> Any:
    """Import a name at its first use: `retrysafe --help` and a worker's client need few of them. Every error class is
    such a name."""
    if name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
        globals()[name] = found
        return found
    if name == "errors":
        return import_module("retrysafe.errors")
    if name[:1].isupper():
        from retrysafe import errors

        error = getattr(errors, name, None)
        if isinstance(error, type) and issubclass(error, errors.RetrySafeError):
            return error
    if name in _ELSEWHERE:
        raise _missing_name_error(name)
    raise AttributeError(f"module 'retrysafe' has no attribute {name!r}")


def _missing_name_error(name: str) -> ImportError | AttributeError:
    """`from retrysafe import once` drops the text of an AttributeError, so it gets an ImportError. Anybody else who
    asks for the name gets an AttributeError: `hasattr` and a default work."""
    import sys

    text = f"retrysafe has no {name!r} at the top: write {_ELSEWHERE[name]}"
    importing = sys._getframe(2).f_code.co_name == "_handle_fromlist"
    return ImportError(text) if importing else AttributeError(text)
