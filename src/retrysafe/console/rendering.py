"""Templates, and the policy that goes with every page. Jinja escapes every value; no template says `safe`.
The one value that is markup already is the diagram of steps (step_diagram.py), which escapes what it draws. A name that
is missing is an error, not an empty text."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from retrysafe.core.times import SECOND_MICROS, format_age, format_time

HERE = Path(__file__).parent
CONTENT_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
SHOWN_BODY_BYTES = 64 * 1024
MINUTE_MICROS = 60 * SECOND_MICROS


def build_policy(nonce: str) -> str:
    """The Content-Security-Policy. Scripts run by nonce; `trusted-types htmx` is the one policy that hx-csp makes."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types htmx"
    )


@lru_cache(1)
def make_environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        time=show_time,
        clock=show_clock,
        age=show_age,
        distance=show_distance,
        short=shorten,
        part=lambda text: quote(text, safe=""),
    )
    return made


def render(name: str, values: dict[str, Any]) -> str:
    return make_environment().get_template(name).render(values)


def show_time(moment: int) -> str:
    return format_time(moment) if moment else "–"


def show_clock(seconds: float) -> str:
    """The time of day, for what happened just now."""
    return format_time(int(seconds * SECOND_MICROS)).partition("T")[2].removesuffix("Z")


def show_age(moment: int, now: int) -> str:
    """How long ago, in the store's time."""
    return format_age(now - moment) if moment else "–"


def show_distance(moment: int, now: int) -> str:
    """How far a moment is from now, either way. Not in seconds: the part of a page that is asked for again every few
    seconds then stays the same, and is not sent again."""
    near = abs(now - moment) < 2 * MINUTE_MICROS
    if moment > now:
        return "in a moment" if near else f"in {format_age(moment - now)}"
    return "just now" if near else f"{format_age(now - moment)} ago"


def shorten(text: str, width: int = 48) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def show_bytes(data: bytes) -> str:
    """Stored bytes as text. Bytes that are no UTF-8 are shown as \\x escapes; a long body is cut."""
    cut = data[:SHOWN_BODY_BYTES]
    more = f"\n… {len(data) - len(cut):,} more bytes" if len(data) > len(cut) else ""
    return cut.decode("utf-8", "backslashreplace") + more


@lru_cache(16)
def read_asset(name: str) -> tuple[bytes, str, str] | None:
    """A file of static/, its content type and its ETag. None if there is none: names are looked up, not joined."""
    found = {path.name: path for path in (HERE / "static").iterdir() if path.suffix in CONTENT_TYPES}.get(name)
    if found is None:
        return None
    data = found.read_bytes()
    return data, CONTENT_TYPES[found.suffix], build_etag(data)


def build_etag(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()[:32]}"'
