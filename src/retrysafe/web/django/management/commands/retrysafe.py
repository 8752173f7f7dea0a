"""`manage.py retrysafe COMMAND`: the command line program, on the project's own store."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand  # type: ignore[import-untyped]  # Django ships no types

from retrysafe.cli.main import main
from retrysafe.web.django import conf


class Command(BaseCommand):  # type: ignore[misc]  # untyped base
    help = "Look at idempotency keys, operations and the outbox, and act on them: manage.py retrysafe --help"
    requires_system_checks: tuple[str, ...] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """The arguments are those of `retrysafe`: Django's own parser does not see them."""
        sys.exit(self.run_program(argv[2:], f"{argv[0]} {argv[1]}"))

    def handle(self, *args: Any, **options: Any) -> None:
        """For call_command("retrysafe", "stats")."""
        code = self.run_program(list(args), "manage.py retrysafe")
        if code:
            sys.exit(code)

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("args", nargs="*")

    def run_program(self, words: list[str], prog: str) -> int:
        return main(words, prog, {"url": conf.store_url(), "app": "retrysafe.web.django.conf:safe"})
