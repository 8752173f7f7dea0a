"""Reads a runbook, and runs its commands as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "runbooks"
SECTIONS = ("Symptom", "Is it urgent?", "Look", "Do", "Check", "Prevent")
TIMEOUT_SECONDS = 120

_HEADING = re.compile(r"(?m)^## (.+)$")
_COMMANDS = re.compile(r"```sh\n(.*?)```", re.DOTALL)


class Runbook:
    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (FOLDER / f"{name}.md").read_text()
        parts = _HEADING.split(self.text)
        self.sections = dict(zip(parts[1::2], parts[2::2], strict=True))

    @property
    def alert(self) -> str:
        found = re.search(r"Alert `(\w+)`", self.text)
        assert found is not None, f"{self.name} does not name its alert"
        return found.group(1)

    def commands(self, section: str) -> list[str]:
        return [line for block in _COMMANDS.findall(self.sections[section]) for line in block.splitlines()]

    def follow(self, section: str, folder: Path, variables: dict[str, str]) -> str:
        """Run the commands of a section in a shell. Each has to succeed. Returns what they printed."""
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            **variables,
        }
        printed = ""
        for command in self.commands(section):
            done = subprocess.run(
                ["bash", "-c", f"set -o pipefail; {command}"],
                cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{self.name}, {section}: {command}\n{done.stdout}{done.stderr}"
            printed += done.stdout
        return printed
