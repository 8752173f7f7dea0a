"""The two programs of the Temporal recipe, impatient, the worker also deadly.

python -m tests.recipes.run_temporal worker TEMPORAL STORE PROVIDER never|enter LEASE
python -m tests.recipes.run_temporal web TEMPORAL STORE LEASE SILENCE PORT
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from examples.recipes import durable_temporal

from retrysafe.engine.events import RecordEvent

LEASE = 2.0
"""Of a process that is to die: so long the next one has to wait for it."""
STICKY = 0.5
SILENCE = 4.0
"""More than the lease: when Temporal gives an attempt up, retrysafe does not wait for it either."""


def worker(temporal: str, store: str, provider: str, dies: str, lease: str) -> None:
    def on_event(event: RecordEvent) -> None:
        if event.name == "completed" and event.target.endswith(f".{dies}"):
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(durable_temporal.work(temporal, store, provider, float(lease), STICKY, on_event=on_event))


def web(temporal: str, store: str, lease: str, silence: str, port: str) -> None:
    asyncio.run(durable_temporal.serve(temporal, store, int(port), float(lease), float(silence)))


if __name__ == "__main__":
    {"worker": worker, "web": web}[sys.argv[1]](*sys.argv[2:])
