"""Key by request or key by operation; keep the state and drop the body; "other body = new request".

By request: the client draws a random key for each click, and a retry of that click is recognised. By operation: the
key names the thing itself (`charge-order-7`), so that two different programs cannot do it twice, ever.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from retrysafe import RetrySafe
from retrysafe.core.ops import Forget, Lookup
from retrysafe.engine.guard import Task


class Billing:
    def __init__(self, safe: RetrySafe) -> None:
        self.charges: list[tuple[int, int]] = []

        @safe.once("click:{request_id}", scope="by-request")
        def by_request(request_id: str, order: int, cents: int) -> int:
            self.charges.append((order, cents))
            return len(self.charges)

        @safe.once("charge-order:{order}", scope="by-operation")
        def by_operation(order: int, cents: int) -> int:
            self.charges.append((order, cents))
            return len(self.charges)

        @safe.once("charge:{order}:{digest}", scope="by-body")
        def by_body(order: int, cents: int, digest: str) -> int:
            self.charges.append((order, cents))
            return len(self.charges)

        self.by_request = by_request
        self.by_operation = by_operation
        self._by_body = by_body

    def other_body_is_a_new_request(self, order: int, cents: int) -> int:
        """Where clients reuse a key for whatever they send next: put the body into the key. A mistake in the body then
        charges twice, which is why it is not the default."""
        digest = hashlib.sha256(json.dumps([order, cents]).encode()).hexdigest()[:16]
        return self._by_body(order, cents, digest)


def drop_body(safe: RetrySafe, task: Task) -> bool:
    """The answer held a secret that was shown once: erase its bytes, keep the fact. A retry is told that it was done
    (AnswerGone), and nothing runs again."""
    record = safe.execute(Lookup(task.key.id(task.namespace))).record
    assert record is not None
    return safe.execute(Forget(record.id, record.fence))


def summary(charges: list[tuple[int, int]]) -> Any:
    return sorted(charges)
