"""Table names. This short file checks them, because they are the only text in SQL that is not a bound value (S16)."""

from __future__ import annotations

import re
from typing import NamedTuple

from retrysafe.errors import BadName
from retrysafe.stores.url_options import parse_number_option, split_options

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
DEFAULT_PREFIX = "retrysafe"


class TableNames(NamedTuple):
    """Quoted names, ready for SQL."""

    keys: str
    meta: str
    bare: str
    """The prefix without quotes, for index names."""
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


__all__ = ["DEFAULT_PREFIX", "TableNames", "build_names", "parse_number_option", "split_options"]
