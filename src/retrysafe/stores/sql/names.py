"""Table names: checked, because they are the only text that goes into SQL without being a bound value (S16)."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from retrysafe.errors import BadName, StoreURLError

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
DEFAULT_PREFIX = "retrysafe"


class TableNames(NamedTuple):
    """Quoted, ready for SQL."""

    keys: str
    meta: str
    bare: str
    """The prefix as it was given, for index names."""
    outbox: str = ""
    receipts: str = ""


def build_names(prefix: str = DEFAULT_PREFIX, schema: str = "") -> TableNames:
    """The tables of one installation: `<prefix>_keys`, `_meta`, `_outbox` and `_receipts`."""
    for what, text in (("table", prefix), ("schema", schema or "x")):
        if not _NAME.fullmatch(text) or len(text) > 48:
            raise BadName(
                f"{what}={text!r} cannot be a {what} name: use 1 to 48 of a-z, 0-9 and _, not starting with a digit"
            )
    space = f'"{schema}".' if schema else ""
    keys, meta, outbox, receipts = (f'{space}"{prefix}_{table}"' for table in ("keys", "meta", "outbox", "receipts"))
    return TableNames(keys, meta, prefix, outbox, receipts)


def split_options(url: str, allowed: frozenset[str]) -> tuple[str, dict[str, str]]:
    """Our own options out of a URL's query; the rest stays for the driver."""
    # By hand: urlsplit and urlunsplit do not agree on what `sqlite:////path` is from one Python to the next.
    plain, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    ours = {name: value for name, value in pairs if name in allowed}
    # A space as %20: drivers read a query as a URI's, where "+" is a plus (libpq's `options=-c%20name%3Dvalue`).
    rest = urlencode([(name, value) for name, value in pairs if name not in allowed], quote_via=quote)
    return (f"{plain}?{rest}" if rest else plain), ours


def parse_number_option(options: dict[str, str], name: str, default: float) -> float:
    """A numeric option of a URL."""
    text = options.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value <= 0:
        raise StoreURLError(f"{name}={text!r} in the store URL is not a number above zero; write {name}={default:g}")
    return value
