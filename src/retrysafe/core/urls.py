"""URLs as they may be shown: in messages and logs a password never appears."""

from __future__ import annotations


def safe_url(url: str) -> str:
    """The URL without its passwords.

    By hand, up to the last `@`: where a password holds `/`, `#` or `?`, a URL parser no longer sees that it is one.
    """
    account, at, place = url.rpartition("@")
    front, colons, user = account.rpartition("://")
    name, secret, _ = user.partition(":")
    shown = f"{front}{colons}{name}:***@{place}" if at and secret else url
    plain, asked, query = shown.partition("?")
    return plain + asked + _masked(query)


def _masked(query: str) -> str:
    """libpq also takes a password among the options."""
    if "password" not in query.lower():
        return query
    from urllib.parse import parse_qsl, urlencode  # slow to import, and seldom needed

    pairs = parse_qsl(query, keep_blank_values=True)
    return urlencode([(name, "***" if "password" in name.lower() else value) for name, value in pairs], safe="*/:")
