"""URLs as they may be shown: in messages and logs a password never appears."""

from __future__ import annotations

import re

HIDDEN = "***"

_SECRET = ("password", "passwd", "pwd", "secret", "token", "credential", "authmechanismproperties")
"""What the name of a secret option holds: of libpq, of MongoDB (whose AWS token is a property), of cloud SDKs."""

_BETWEEN = re.compile(r"([?&;\s])")
_QUOTED = re.compile(r"=\s*'[^']*'")


def safe_url(url: str) -> str:
    """The URL without its passwords and tokens.

    By hand, from the first `://` to the last `@`: where a password holds `/`, `#`, `?` or `://`, a URL parser no longer
    sees that it is one.
    """
    account, at, place = url.rpartition("@")
    front, colons, user = account.partition("://")
    if not colons:
        front, user = "", account
    name, secret, _ = user.partition(":")
    shown = f"{front}{colons}{name}:{HIDDEN}@{place}" if at and secret else url
    return "".join(map(_masked, _BETWEEN.split(_QUOTED.sub(_unspaced, shown))))


def hidden(text: str, url: str) -> str:
    """Somebody else's words about this URL, without what is secret in it. A parser that takes a password for a port
    says so, and quotes it."""
    for secret in sorted(_secrets(url), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return safe_url(text)


def _secrets(url: str) -> set[str]:
    """The secrets of a URL, and the pieces a parser may take them apart into."""
    from urllib.parse import unquote  # slow to import, and only errors need it

    user = url.rpartition("@")[0].partition("://")[2]
    whole = [user.partition(":")[2]]
    for piece in _BETWEEN.split(url):
        name, _, value = piece.partition("=")
        if _is_secret(name):
            whole.append(value)
    found = {form for secret in whole for form in (secret, unquote(secret)) if secret}
    # Pieces of one or two characters give nothing away, and would be found in every word.
    return found | {piece for secret in whole for piece in re.split(r"[/?#@:\[\]]+", secret) if len(piece) > 2}


def _masked(piece: str) -> str:
    name, equals, value = piece.partition("=")
    return f"{name}={HIDDEN}" if equals and value and _is_secret(name) else piece


def _is_secret(name: str) -> bool:
    if "%" in name:
        from urllib.parse import unquote  # drivers read names so, too

        name = unquote(name)
    return any(word in name.lower() for word in _SECRET)


def _unspaced(quoted: re.Match[str]) -> str:
    """A quoted value of `name='a b'` as one piece."""
    return re.sub(r"[?&;\s]+", "_", quoted.group())
