"""Namespaces are walls: what in a store belongs to one application (I34)."""

from __future__ import annotations

from collections.abc import Iterable

from retrysafe.engine.safe import RetrySafe

OBSERVED_PREFIX = "observed:"
"""In front of a namespace: where observe mode keeps what it would have done (web/observe.py)."""


def owned_namespaces(safe: RetrySafe) -> tuple[str, str]:
    """An application owns its namespace, and what it only observed."""
    return safe.namespace, OBSERVED_PREFIX + safe.namespace


def is_sole_application(namespace: str, names: Iterable[str]) -> bool:
    """Whether nobody else is in the store: then what has no namespace is ours."""
    return set(names) <= {namespace, OBSERVED_PREFIX + namespace}
