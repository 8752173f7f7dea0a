"""Where a RetrySafe's receipts go: its tables, and what is known of them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from retrysafe.errors import UsageError
from retrysafe.stores.mongo.settings import Home
from retrysafe.stores.registry import find_backend
from retrysafe.stores.sql.names import Names
from retrysafe.transactions.effects import RERUNS, Known, Place

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

_known: WeakKeyDictionary[RetrySafe, tuple[Names | Home, Known]] = WeakKeyDictionary()


def place(safe: RetrySafe, *, reruns: int = RERUNS) -> Place:
    remembered = _known.get(safe)
    if remembered is None:
        remembered = _known[safe] = (tables(safe), Known())
    names, known = remembered
    return Place(names, known, safe._sealer, safe.events, reruns)


def tables(safe: RetrySafe) -> Names | Home:
    """The names of the store's tables; UsageError where a store has none that a transaction could write to."""
    found: object = None
    if safe._url:
        named = getattr(find_backend(safe._url), "names", None)
        found = named(safe._url) if named is not None else None
    else:
        found = getattr(safe._sync or safe._async, "names", None)
    if isinstance(found, Names | Home):
        return found
    raise UsageError(
        f"{safe!r} keeps its records where no transaction of yours can reach them, so no receipt can commit with "
        "your work; open it on your own database (postgresql://, mysql://, mongodb:// or sqlite:///), or use "
        "@safe.once or an operation"
    )
