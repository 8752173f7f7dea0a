"""URLs without secrets: no password appears in messages and logs."""

from __future__ import annotations

import re

REDACTED = "***"

_SECRET_WORDS = ("password", "passwd", "pwd", "secret", "token", "credential", "authmechanismproperties")
"""Words in the names of secret options: of libpq, of MongoDB (whose AWS token is a property), of cloud SDKs."""

_SEPARATOR = re.compile(r"([?&;\s])")
_QUOTED = re.compile(r"=\s*'(?:[^'\\]|\\.)*'")
_SPACED = re.compile(rf"(?i)((?:{'|'.join(_SECRET_WORDS)})\w*)\s*=\s*")
"""libpq allows space around the `=`."""


def safe_url(url: str) -> str:
    """The URL without its passwords and tokens.

    The account is what lies between the first `://` and the last `@`. A URL parser does not find a password that
    contains `/`, `#`, `?` or `://`.
    """
    account, at, place = url.rpartition("@")
    front, colons, user = account.partition("://")
    if not colons:
        front, user = "", account
    name, secret, _ = user.partition(":")
    shown = f"{front}{colons}{name}:{REDACTED}@{place}" if at and secret else url
    return "".join(map(_mask_option, _SEPARATOR.split(_join_options(shown))))


def name_url(url: str) -> str:
    """The URL as a command names it that is to be copied, or `URL` if it has a secret."""
    return url if safe_url(url) == url else "URL"


def redact_secrets(text: str, url: str) -> str:
    """A driver's message about this URL, without the URL's secrets. A parser that takes a password for a port quotes
    it."""
    for secret in sorted(_find_secrets(url), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return safe_url(text)


def _find_secrets(url: str) -> set[str]:
    """The secrets of a URL, and the pieces into which a parser may split them."""
    from urllib.parse import unquote  # slow to import, and only errors need it

    user = url.rpartition("@")[0].partition("://")[2]
    whole = [user.partition(":")[2]]
    for piece in _SEPARATOR.split(_SPACED.sub(r"\1=", url)):
        name, _, value = piece.partition("=")
        if _is_secret(name):
            whole.append(value)
    found = {form for secret in whole for form in (secret, unquote(secret)) if secret}
    # Pieces of one or two characters reveal nothing, and occur in ordinary words.
    return found | {piece for secret in whole for piece in re.split(r"[/?#@:\[\]]+", secret) if len(piece) > 2}


def _mask_option(piece: str) -> str:
    name, equals, value = piece.partition("=")
    return f"{name}={REDACTED}" if equals and value and _is_secret(name) else piece


def _is_secret(name: str) -> bool:
    if "%" in name:
        from urllib.parse import unquote  # drivers unquote names, too

        name = unquote(name)
    return any(word in name.lower() for word in _SECRET_WORDS)


def _join_options(text: str) -> str:
    """The text with every secret option in one piece: no space around its `=`, and none in its quoted value."""
    return _QUOTED.sub(_join_quoted, _SPACED.sub(r"\1=", text))


def _join_quoted(quoted: re.Match[str]) -> str:
    """A quoted value, as in `name='a b'`, without separators in it."""
    return re.sub(r"[?&;\s]+", "_", quoted.group())
