"""What goes between a test and the processes of other releases: one line of JSON each way, bytes as `{"$hex": …}`.

Records, answers and outcomes travel as plain dictionaries: whoever reads them needs no release at all. Used by the
tests and by child.py, so it imports nothing of retrysafe.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any


def dump(value: Any) -> str:
    return json.dumps(plain(value), separators=(",", ":"))


def load(text: str | bytes) -> Any:
    return json.loads(text, object_hook=_rich)


def plain(value: Any) -> Any:
    """As JSON has it. A named tuple becomes its fields: what a later release adds is one more name."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$hex": bytes(value).hex()}
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "_asdict"):
        if hasattr(value, "algorithm"):  # a fingerprint is stored as text
            return str(value)
        return {name: plain(each) for name, each in value._asdict().items()}
    if hasattr(value, "gone"):  # an answer
        return plain({name: getattr(value, name) for name in ("status", "body", "headers", "gone")})
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return value


def _rich(found: dict[str, Any]) -> Any:
    return bytes.fromhex(found["$hex"]) if set(found) == {"$hex"} else found
