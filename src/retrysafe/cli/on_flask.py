"""`flask retrysafe COMMAND`: the command line program on the application's own store. Flask finds it by the entry point
`flask.commands`."""

from __future__ import annotations

import sys
from typing import Any

import click
from flask import current_app
from flask.cli import with_appcontext

from retrysafe.cli.main import main
from retrysafe.engine.safe import RetrySafe

EXTENSION = "retrysafe"


@click.command(
    "retrysafe",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    help="Look at idempotency keys, operations and the outbox, and act on them.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@with_appcontext
def command(words: tuple[str, ...]) -> None:
    sys.exit(main(list(words), "flask retrysafe", find_defaults(current_app)))


def find_defaults(app: Any) -> dict[str, str]:
    """The application's store, as `init_app` left it or as RETRYSAFE_URL of its configuration says."""
    if isinstance(find_safe(app), RetrySafe):
        return {"app": "retrysafe.cli.on_flask:find_safe"}
    url = app.config.get("RETRYSAFE_URL")
    return {"url": url} if url else {}


def find_safe(app: Any = None) -> RetrySafe | None:
    """The RetrySafe of the current application."""
    found = (app or current_app).extensions.get(EXTENSION)
    safe = getattr(getattr(found, "settings", None), "safe", None)
    return safe if isinstance(safe, RetrySafe) else None
