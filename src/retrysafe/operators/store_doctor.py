"""The doctor of a store: its settings, and that every staged job has a namespace."""

from __future__ import annotations

from retrysafe.core.jobs import Namespaces
from retrysafe.core.keys import OBSERVED_PREFIX
from retrysafe.core.urls import name_url
from retrysafe.errors import StoreError
from retrysafe.stores.diagnosis import Diagnosis, Finding, bad, diagnose
from retrysafe.stores.registry import find_backend, open_store


def diagnose_store(url: str) -> Diagnosis:
    """Check the store's settings, and that every staged job has a namespace (rule 15)."""
    found = diagnose(url)
    unnamed = find_unnamed_jobs(url)
    return found if unnamed is None else found._replace(findings=(*found.findings, unnamed))


def find_unnamed_jobs(url: str) -> Finding | None:
    """Report jobs without a namespace in a store that several applications use. None if there are none."""
    if not find_backend(url).capabilities.outbox:
        return None
    store = open_store(url)
    try:
        seen = store.execute(Namespaces())
    except StoreError:
        return None  # no tables yet: `retrysafe migrate` was not run, and that is no finding
    finally:
        store.close()
    applications = [name for name in seen.names if not name.startswith(OBSERVED_PREFIX)]
    if not seen.unnamed or len(applications) < 2:
        return None
    jobs = "1 staged job belongs" if seen.unnamed == 1 else f"{seen.unnamed} staged jobs belong"
    why = f"{jobs} to no application, and the store is used by {', '.join(applications)}: no worker publishes it"
    fix = f"retrysafe outbox assign {name_url(url)} --namespace NAME --because TEXT --yes"
    return bad("outbox", seen.unnamed, "exactly-once-capable", why, fix, invariant="I34")
