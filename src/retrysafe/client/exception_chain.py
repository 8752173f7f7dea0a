"""Reading exceptions that are wrapped in exceptions: libraries hide the reason two or three layers deep."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

MAX_DEPTH = 10


def iter_wrapped(error: BaseException) -> Iterator[BaseException]:
    """The error and everything it wraps: causes, contexts, arguments, and what urllib3 calls its reason."""
    waiting, seen = [error], 0
    while waiting and seen < MAX_DEPTH:
        found = waiting.pop(0)
        seen += 1
        yield found
        inner = (found.__cause__, found.__context__, getattr(found, "reason", None), *found.args)
        waiting += [one for one in inner if isinstance(one, BaseException) and one is not found]


def is_untrusted_certificate(error: BaseException) -> bool:
    """The certificate is not trusted: trying again does not change it, and somebody should look."""
    return any(isinstance(one, ssl.SSLCertVerificationError) for one in iter_wrapped(error))
