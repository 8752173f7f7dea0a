"""`retrysafe config`: the settings that commands use here, and where each comes from."""

from __future__ import annotations

import argparse
from typing import Any

from retrysafe.cli import exits
from retrysafe.cli.output import print_json, print_table
from retrysafe.cli.parsing import add_json
from retrysafe.cli.settings import SETTING_NAMES, read_setting
from retrysafe.core.urls import safe_url


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "config",
        help="the settings of this folder, and where they come from",
        description="An argument goes before the environment (RETRYSAFE_URL, RETRYSAFE_NAMESPACE, RETRYSAFE_APP), that "
        "before retrysafe.toml, that before [tool.retrysafe] in pyproject.toml. `manage.py retrysafe` and `flask "
        "retrysafe` take the store of the application unless an argument names another. Passwords are not shown.",
        takes_url=True,
        url_only=True,
        examples=("retrysafe config", "RETRYSAFE_URL=sqlite:///app.db retrysafe config --json"),
    )
    parser.add_argument("--namespace", help="the application")
    add_json(parser, "print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    found = [read_setting(args, name) for name in SETTING_NAMES]
    shown = [(each.name, safe_url(each.value) if each.name == "url" else each.value, each.source) for each in found]
    if args.json:
        print_json({name: {"value": value or None, "source": source or None} for name, value, source in shown})
    else:
        print_table(("setting", "value", "source"), [(n, v or "-", s or "not set") for n, v, s in shown], (10, 40))
    return exits.DONE
