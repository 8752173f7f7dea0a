"""New keys, for clients, and for requests that brought none. Not in core/keys.py: core draws nothing at random."""

from __future__ import annotations


def new_key() -> str:
    """A random key, for one thing that the user wants. Save it before the first attempt, and send it with each try."""
    import uuid  # here: few processes make keys, and the import is slow

    return str(uuid.uuid4())
