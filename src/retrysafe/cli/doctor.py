"""`retrysafe doctor URL`: what a store's real settings are worth, and how to mend them; `module:jobs`: a queue's."""

from __future__ import annotations

import argparse
import json
from typing import Any

from retrysafe.cli.import_object import import_object
from retrysafe.core.jobs import Namespaces
from retrysafe.errors import StoreError, UsageError
from retrysafe.stores.diagnosis import LABELS, Diagnosis, Finding, bad, diagnose, worst_label
from retrysafe.stores.registry import find_backend, open_store, safe_url
from retrysafe.worker.namespaces import OBSERVED_PREFIX

EXIT_BELOW_REQUIRED = 1


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="say what a store's settings are worth",
        description="Reads a store's real settings and says what they are worth, with the command that mends each. "
        "Exits with 1 when they are worth less than --require.",
    )
    parser.add_argument(
        "url",
        metavar="URL",
        help="the store, for example postgresql://user@host/db; or the jobs of an application, as module:jobs",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--require", choices=tuple(LABELS), default="exactly-once-capable", help="the least that is good enough"
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    found = diagnose_store(given.url) if "://" in given.url else diagnose_jobs(given.url)
    print(format_json(found) if given.json else "\n".join(format_table(found, safe_url(given.url))))
    return 0 if worst_label((found.label, given.require)) == given.require else EXIT_BELOW_REQUIRED


def diagnose_store(url: str) -> Diagnosis:
    """The store's settings, and whether all that waits in it is somebody's (rule 15)."""
    found = diagnose(url)
    unnamed = find_unnamed_jobs(url)
    return found if unnamed is None else found._replace(findings=(*found.findings, unnamed))


def find_unnamed_jobs(url: str) -> Finding | None:
    """Jobs without a namespace, where several applications use the store; nothing where all is well, or not there."""
    if not find_backend(url).capabilities.outbox:
        return None
    store = open_store(url)
    try:
        seen = store.execute(Namespaces())
    except StoreError:
        return None  # its tables are not there, which is not the doctor's to say
    finally:
        store.close()
    applications = [name for name in seen.names if not name.startswith(OBSERVED_PREFIX)]
    if not seen.unnamed or len(applications) < 2:
        return None
    jobs = "1 staged job belongs" if seen.unnamed == 1 else f"{seen.unnamed} staged jobs belong"
    why = f"{jobs} to no application, and there are {', '.join(applications)}: nobody publishes it"
    fix = f"retrysafe outbox assign {safe_url(url)} --namespace NAME"
    return bad("outbox", seen.unnamed, "exactly-once-capable", why, fix, invariant="I34")


def diagnose_jobs(where: str) -> Diagnosis:
    """What the queue of an application remembers, beside what we do (retrysafe.jobs)."""
    found = import_object(where)
    if not hasattr(found, "diagnose"):
        raise UsageError(
            f"{where} is a {type(found).__name__}: name a store's URL, or the jobs of an application, such as the "
            "CeleryJobs it has"
        )
    diagnosed: Diagnosis = found.diagnose()
    return diagnosed


def format_json(found: Diagnosis) -> str:
    findings = [{**finding._asdict(), "fine": finding.fine} for finding in found.findings]
    return json.dumps({"store": found.store, "label": found.label, "findings": findings})


def format_table(found: Diagnosis, where: str) -> list[str]:
    lines = [f"{found.store} at {where}", f"{found.label}: {LABELS[found.label]}", ""]
    setting = max((len(one.setting) for one in found.findings), default=0)
    value = max((len(one.value) for one in found.findings), default=0)
    for one in found.findings:
        lines += _format_finding(one, setting, value)
    return lines


def _format_finding(one: Finding, setting: int, value: int) -> list[str]:
    mark = "ok   " if one.fine else "WRONG"
    line = f"  {mark}  {one.setting:{setting}}  {one.value:{value}}  {one.invariant:3}  {one.why}"
    return [line] if one.fine else [line, f"         mend: {one.fix}"]
