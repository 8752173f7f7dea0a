"""Where the settings of a command come from: its arguments, the environment, `retrysafe.toml`, `[tool.retrysafe]` of
`pyproject.toml`; the first that has one wins. Files are read in the current folder only."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from retrysafe.errors import UsageError

SETTING_NAMES = ("url", "namespace", "app")
DEFAULTS = {"namespace": "default"}
FILE_NAME = "retrysafe.toml"
SECTION_FILE = "pyproject.toml"


class CliSetting(NamedTuple):
    name: str
    value: str
    source: str
    """Where the value comes from; empty if there is none."""


def choose_setting(
    name: str, argument: str | None, environ: Mapping[str, str], files: Mapping[str, Mapping[str, Any]]
) -> CliSetting:
    """The value of one setting. `files`: by the name of each file, what it says."""
    variable = f"RETRYSAFE_{name.upper()}"
    if argument is not None:
        return CliSetting(name, argument, "argument")
    if environ.get(variable):
        return CliSetting(name, environ[variable], variable)
    for file, found in files.items():
        if name in found:
            if not isinstance(found[name], str):
                raise UsageError(f"{file}: {name} = {found[name]!r}: write a text in quotation marks")
            return CliSetting(name, found[name], file)
    return CliSetting(name, DEFAULTS.get(name, ""), "default" if name in DEFAULTS else "")


def read_files(folder: Path) -> dict[str, dict[str, Any]]:
    """What the files of a folder say. A file that is not there says nothing."""
    found: dict[str, dict[str, Any]] = {}
    for name in (FILE_NAME, SECTION_FILE):
        path = folder / name
        if not path.is_file():
            continue
        import tomllib  # only where there is such a file

        try:
            content: dict[str, Any] = tomllib.loads(path.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            if name == SECTION_FILE:
                continue  # not our file
            raise UsageError(f"{name}: {error}") from error
        found[name] = content if name == FILE_NAME else content.get("tool", {}).get("retrysafe", {})
        unknown = sorted(set(found[name]) - set(SETTING_NAMES))
        if unknown and name == FILE_NAME:  # [tool.retrysafe] may have settings of other tools
            raise UsageError(f"{name}: {unknown[0]!r} is no setting; there are {', '.join(SETTING_NAMES)}")
    return found


def read_setting(args: argparse.Namespace, name: str) -> CliSetting:
    return choose_setting(name, getattr(args, name, None), os.environ, read_files(Path.cwd()))


def require_app(args: argparse.Namespace) -> str:
    found = read_setting(args, "app")
    if not found.value:
        raise UsageError(
            'which application? Give MODULE:SAFE, set RETRYSAFE_APP, or write app = "module:safe" into retrysafe.toml'
        )
    return found.value


def require_url(args: argparse.Namespace) -> str:
    found = read_setting(args, "url")
    if not found.value:
        raise UsageError(
            "which store? Give its URL (sqlite:///app.db, postgresql://user@host/db, …), set RETRYSAFE_URL, or write "
            'url = "…" into retrysafe.toml'
        )
    return found.value
