"""Extras: an import that needs a package of one says which to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from retrysafe.errors import MissingDriver


@contextmanager
def needs_extra(extra: str, needed_by: str) -> Iterator[None]:
    """Around an import. If a package is not installed, it raises MissingDriver with its name and the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("retrysafe"):
            raise
        raise MissingDriver(extra, error.name, extra, needed_by) from error
