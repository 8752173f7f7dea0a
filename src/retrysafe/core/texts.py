"""How an error becomes one line of text, for messages, logs and notes.

A file of its own, because every package needs it and `core` is the only package that all of them may import.
"""

from __future__ import annotations


def first_line(error: BaseException, message: str | None = None) -> str:
    """The first line of the error's message, or the name of its class where the message is empty.

    Drivers append hints, statements and stack traces in further lines. `message` replaces `str(error)` for a driver
    whose message is only a part of that text.
    """
    text = (str(error) if message is None else message).strip()
    return text.splitlines()[0] if text else type(error).__name__


def name_and_message(error: BaseException, max_chars: int | None = None) -> str:
    """`ValueError: no such order`, cut off after `max_chars` characters. The message may have several lines."""
    return f"{type(error).__name__}: {error}"[:max_chars]
