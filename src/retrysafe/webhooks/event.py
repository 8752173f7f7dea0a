"""An event, as a handler sees it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """A verified delivery. The body is what the sender signed, byte for byte; of the headers only those that the scheme
    signs can be believed."""

    provider: str
    id: str
    """The sender's id."""
    key: str
    """What makes it one event for us; derive keys for other systems from it: `derive(event.key, "crm", "contact")`."""
    type: str
    body: bytes = field(repr=False)
    timestamp: int | None = None
    """When this delivery was sent, in seconds; None where the scheme signs no time."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Lower-case names. Signatures, cookies and credentials are not among them."""

    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)

    def header(self, name: str) -> str:
        """The first header of a name; empty where there is none."""
        name = name.lower()
        return next((value for each, value in self.headers if each == name), "")
