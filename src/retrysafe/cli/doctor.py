"""`retrysafe doctor URL`: check a store's real settings and print the fixes; `MODULE:JOBS` checks a job queue."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import Any

from retrysafe.cli.import_object import import_object
from retrysafe.cli.output import print_line, print_table
from retrysafe.cli.session import check_file
from retrysafe.cli.settings import read_setting, require_url
from retrysafe.core.urls import name_url
from retrysafe.errors import UsageError
from retrysafe.operators.store_doctor import diagnose_store
from retrysafe.stores.diagnosis import LABELS, Diagnosis, Finding, Label, worst_label
from retrysafe.stores.registry import safe_url
from retrysafe.stores.sql.schema_doctor import SCHEMA_SETTING

EXIT_BELOW_REQUIRED = 1
MIGRATE = "retrysafe migrate URL"
"""How the diagnosis of a store names the command that makes its tables."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check a store's settings",
        description="Reads a store's real settings and prints the guarantee that they allow, with a fix for each wrong "
        "setting. Exits with 1 if the guarantee is below --require, or if the schema does not fit this release.",
        takes_url=True,
        url_only=True,
        examples=("retrysafe doctor postgresql://user@host/db", "retrysafe doctor myapp.jobs:jobs --json"),
    )
    parser.add_argument(
        "jobs", metavar="MODULE:JOBS", nargs="?", help="instead of a store: the jobs object of your application"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--require", choices=tuple(LABELS), default="exactly-once-capable", help="the lowest guarantee to accept"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    where = args.jobs if args.jobs is not None else require_url(args)
    if "://" in where:
        check_file(where)
    found = name_in_fixes(diagnose_store(where), args) if "://" in where else diagnose_jobs(where)
    if not args.json and sys.stdout.isatty():
        print_findings(found, safe_url(where))
    else:
        print(format_json(found) if args.json else "\n".join(format_table(found, safe_url(where))))
    return find_code(found, args.require)


def name_in_fixes(found: Diagnosis, args: argparse.Namespace) -> Diagnosis:
    """The diagnosis with fixes that can be copied: they name the store if it was an argument."""
    given = read_setting(args, "url")
    words = ["retrysafe", "migrate", *([name_url(given.value)] if given.source == "argument" else [])]
    return found._replace(
        findings=tuple(one._replace(fix=one.fix.replace(MIGRATE, shlex.join(words))) for one in found.findings)
    )


def find_code(found: Diagnosis, required: Label) -> int:
    """1 if the guarantee is below what is required, or code of this release does not fit the schema. Pure."""
    fits = all(one.fine for one in found.findings if one.setting == SCHEMA_SETTING)
    return 0 if fits and worst_label((found.label, required)) == required else EXIT_BELOW_REQUIRED


def diagnose_jobs(where: str) -> Diagnosis:
    """Check the settings of an application's job queue (retrysafe.jobs)."""
    found = import_object(where)
    if not hasattr(found, "diagnose"):
        raise UsageError(
            f"{where} is a {type(found).__name__}: give the URL of a store, or the jobs object of an "
            "application, for example its CeleryJobs"
        )
    diagnosed: Diagnosis = found.diagnose()
    return diagnosed


def format_json(found: Diagnosis) -> str:
    findings = [{**finding._asdict(), "fine": finding.fine} for finding in found.findings]
    return json.dumps({"store": found.store, "label": found.label, "findings": findings})


def print_findings(found: Diagnosis, where: str) -> None:
    """On a terminal: a table, and below it how to fix what is wrong."""
    print_line(f"{found.store} at {where}")
    print_line(f"{found.label}: {LABELS[found.label]}")
    print()
    marks = {True: "ok", False: "WRONG"}
    rows = ((marks[one.fine], one.setting, one.value, one.invariant, one.why) for one in found.findings)
    print_table(("", "setting", "value", "rule", "why"), rows)
    for one in found.findings:
        if not one.fine:
            print_line(f"fix {one.setting}: {one.fix}")


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
    return [line] if one.fine else [line, f"         fix:  {one.fix}"]
