"""The receiver that every mount uses. Its effects are in files, so that a test sees them from outside.

`slow` waits until the test releases it; `fails` fails as long as a file with its name exists.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from retrysafe.engine.safe import RetrySafe
from retrysafe.webhooks import Event, Receiver, Stripe

FOLDER = Path(os.environ["REFERENCE_DIR"])
LEASE = FOLDER / "lease"
"""A file with a lease in seconds, for servers that are killed in the middle of a handler. Without the file the lease is
the default, so that no handler loses its lease on a machine that stalls."""

safe = RetrySafe(os.environ["RETRYSAFE_URL"])
stripe = Receiver(safe, Stripe("whsec_new", "whsec_old"), lease=float(LEASE.read_text()) if LEASE.exists() else 600.0)


def effect(event: Event) -> None:
    with (FOLDER / f"effects-{event.id}").open("a") as file:
        file.write("x\n")


def waiting(event: Event) -> bool:
    return not (FOLDER / f"go-{event.id}").exists()


@stripe.on("plain.*")
def plain(event: Event) -> None:
    effect(event)
    while event.type == "plain.slow" and waiting(event):
        time.sleep(0.01)
    fail(event)


@stripe.on("async.*")
async def awaited(event: Event) -> None:
    effect(event)
    while event.type == "async.slow" and waiting(event):
        await asyncio.sleep(0.01)
    fail(event)


def fail(event: Event) -> None:
    if (FOLDER / f"fail-{event.id}").exists():
        raise RuntimeError("as the test wanted")
