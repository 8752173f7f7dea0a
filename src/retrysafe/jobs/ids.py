"""From keys to job ids that every queue takes. Pure.

A key names one job of an application, whatever its task: `charge-order-7`. Where it may, it is the job's id as it
stands, so that a job can be found in the queue's own tools by the key one knows.
"""

from __future__ import annotations

import hashlib
import re

from retrysafe.core.keys import frame
from retrysafe.errors import UsageError

MAX_ID_CHARS = 120
SHOWN_KEY_CHARS = 60
DIGEST_CHARS = 24

# RQ takes letters, digits, `_` and `-` and nothing else; BullMQ takes neither a colon nor a bare number.
_PLAIN = re.compile(r"(?=.*[A-Za-z_-])[A-Za-z0-9_-]+")
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")


def job_id(key: str) -> str:
    """The id of the one job this key stands for; the key itself where every queue would take it.

    Any other key gets what can be read of it and a digest of all of it: `receipt:7` is `receipt-7-` and 24 digits.
    An id of ours is its own id, so the worker, which knows only the id, comes to the same record.
    """
    if not isinstance(key, str) or not key:
        raise UsageError(f"key={key!r}: a job's key is text, for example 'charge-order-7'")
    if len(key) <= MAX_ID_CHARS and _PLAIN.fullmatch(key):
        return key
    shown = _OTHER.sub("-", key)[:SHOWN_KEY_CHARS].strip("-") or "job"
    return f"{shown}-{hashlib.sha256(frame('job', key)).hexdigest()[:DIGEST_CHARS]}"


def step_key(saga: str, step: str) -> str:
    """`{saga}-{step}`: the key of the job that does one step of one saga."""
    if not saga or not step:
        raise UsageError(f"step_key({saga!r}, {step!r}): name the saga and the step")
    return f"{saga}-{step}"
