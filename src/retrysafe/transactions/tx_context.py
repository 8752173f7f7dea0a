"""Where a RetrySafe's receipts go: its tables, and what is known of them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from retrysafe.errors import UsageError
from retrysafe.stores.mongo.settings import Collections
from retrysafe.stores.registry import find_backend
from retrysafe.stores.sql.names import TableNames
from retrysafe.transactions.effects import MAX_RERUNS, InstallId, TxContext

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

_tx_contexts: WeakKeyDictionary[RetrySafe, tuple[TableNames | Collections, InstallId]] = WeakKeyDictionary()


def build_tx_context(safe: RetrySafe, *, max_reruns: int = MAX_RERUNS) -> TxContext:
    remembered = _tx_contexts.get(safe)
    if remembered is None:
        remembered = _tx_contexts[safe] = (tables(safe), InstallId())
    names, known = remembered
    return TxContext(names, known, safe._sealer, safe.events, max_reruns)


def tables(safe: RetrySafe) -> TableNames | Collections:
    """The names of the store's tables; UsageError where a store has none that a transaction could write to."""
    found: object = None
    if safe._url:
        named = getattr(find_backend(safe._url), "names", None)
        found = named(safe._url) if named is not None else None
    else:
        found = getattr(safe._sync or safe._async, "names", None)
    if isinstance(found, TableNames | Collections):
        return found
    raise UsageError(
        f"{safe!r} keeps its records where no transaction of yours can reach them, so no receipt can commit with "
        "your work; open it on your own database (postgresql://, mysql://, mongodb:// or sqlite:///), or use "
        "@safe.once or an operation"
    )
