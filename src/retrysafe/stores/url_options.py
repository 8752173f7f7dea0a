"""Our own options in a store URL (`?table=…&pool=…`). Short, because SQL stores and MongoDB share only this."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode

from retrysafe.errors import StoreURLError


def split_options(url: str, allowed: frozenset[str]) -> tuple[str, dict[str, str]]:
    """Split a store URL into the URL for the driver and our own options."""
    # Without urlsplit and urlunsplit: they treat `sqlite:////path` differently in different versions of Python.
    plain, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    ours = {name: value for name, value in pairs if name in allowed}
    # A space becomes %20: drivers read "+" in a query as a plus (libpq: `options=-c%20name%3Dvalue`).
    rest = urlencode([(name, value) for name, value in pairs if name not in allowed], quote_via=quote)
    return (f"{plain}?{rest}" if rest else plain), ours


def parse_number_option(options: dict[str, str], name: str, default: float) -> float:
    """The value of an option that is a number above zero."""
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
