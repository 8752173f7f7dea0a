"""A process that places orders with a journal, and may kill itself on the way.

    python -m tests.client.child URL JOURNAL COUNT SEED CHANCE TIMEOUT

With CHANCE above zero it dies by SIGKILL, after the key is on disk: just before sending, or just after the answer has
arrived and before anybody could write that down. It prints one answer per line.
"""

from __future__ import annotations

import os
import random
import signal
import sys

import httpx

from retrysafe.client import Budget, Retries, operation
from retrysafe.client.httpx import RetryTransport


class Mortal(httpx.BaseTransport):
    def __init__(self, seed: int, chance: float) -> None:
        self._inner = httpx.HTTPTransport()
        self._random = random.Random(seed)
        self._chance = chance

    def _maybe_die(self) -> None:
        if self._random.random() < self._chance:
            os.kill(os.getpid(), signal.SIGKILL)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._maybe_die()
        response = self._inner.handle_request(request)
        response.read()
        self._maybe_die()
        return response


def main(url: str, journal: str, count: str, seed: str, chance: str, timeout: str) -> None:
    transport = RetryTransport(
        Mortal(int(seed), float(chance)),
        journal=journal,
        budget=Budget(1e9),
        retries=Retries(attempts=50, cap=0.01, max_retry_after=0.01),
    )
    with httpx.Client(transport=transport, base_url=url, timeout=float(timeout)) as client:
        for number in range(int(count)):
            with operation(f"order-{number}"):
                response = client.post("/orders", json={"order": f"order-{number}"})
            print(response.status_code, response.text, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
