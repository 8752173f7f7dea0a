"""`retrysafe`: the command line program. Each command group is a module with an `add_parser` function. The module of a
group is imported when the group is named, so that a command starts fast."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from retrysafe import __version__
from retrysafe.cli.parsing import Parser

COMMANDS = {
    "keys": ("keys", "look at keys and decide about them"),
    "stats": ("stats", "what is open, and how old the oldest is"),
    "top": ("stats", "the same, live"),
    "tail": ("tail", "what happens to open keys, as it happens"),
    "outbox": ("outbox", "jobs that wait to be published"),
    "dead-letters": ("dead_letters", "jobs and runs that are not tried again before an operator has looked"),
    "operations": ("operations", "operations and their runs"),
    "erase": ("erase", "erase the stored data of one scope, with a receipt"),
    "audit": ("audit", "who changed what by hand, and why"),
    "reap": ("reap", "delete expired records now"),
    "worker": ("worker", "finish abandoned operations, publish staged jobs, delete expired records"),
    "migrate": ("migrate", "create or upgrade a store's tables"),
    "doctor": ("doctor", "check a store's settings"),
    "config": ("config", "the settings of this folder, and where they come from"),
    "rollout": ("rollout", "who sends keys: from observe to required"),
    "console": ("console", "a web console for operators, on this machine"),
    "trigger": ("trigger", "bring about what your alerts should see"),
    "reconcile": ("reconcile", "compare our records with another system's"),
    "completion": ("completion", "print a completion script for bash or zsh"),
    "demo": ("demo", "serve a demo payments API with a page for your browser"),
}
"""Command, its module, and its help."""

PROGRAM = "retrysafe"
EXAMPLES = (
    "retrysafe stats sqlite:///app.db",
    "retrysafe keys list --state uncertain",
    "retrysafe keys why order-7",
    "retrysafe keys resolve order-7 --did-not-happen --because 'the provider shows no charge'",
)


def build_parser(command: str | None = None, prog: str = PROGRAM) -> Parser:
    """The parser of one command, with the names and helps of the others; or of all commands."""
    root = Parser(
        prog=prog,
        description="Makes every write safe to retry. The URL of the store is an argument, RETRYSAFE_URL, or `url` in "
        "retrysafe.toml. Exit codes: 0 done, 1 refused, 2 usage, 3 not found, 4 changed underneath, 5 store out of "
        "reach.",
        examples=EXAMPLES,
    )
    root.add_argument("--version", action="version", version=f"retrysafe {__version__}")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name, (module, text) in COMMANDS.items():
        if command in (None, name):
            group = import_module(f"retrysafe.cli.{module}")
            getattr(group, f"add_{name.replace('-', '_')}_parser", group.add_parser)(commands)
        else:
            commands.add_parser(name, help=text, add_help=False)
    return root


def main(arguments: Sequence[str] | None = None, prog: str = PROGRAM, defaults: Mapping[str, str] | None = None) -> int:
    """Run one command. `defaults` are settings of the framework that it was started from."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        build_parser("-", prog).print_help()
        return 0
    command = next((word for word in words if not word.startswith("-")), "")
    args = parse_words(build_parser(command if command else "-", prog), words)
    set_defaults(args, defaults or {})
    from retrysafe.cli.running import run_command  # not needed for --help

    return run_command(args)


def parse_words(parser: Parser, words: list[str]) -> Any:
    """Parse the words. What is left over is told by the parser of the command, which knows its options: the parser of
    the whole program finds it, and would suggest `--help` for every option that is mistyped."""
    args, unknown = parser.parse_known_args(words)
    if unknown:
        find_parser(parser, words).error(f"unrecognized arguments: {' '.join(unknown)}")
    return args


def find_parser(parser: Parser, words: Sequence[str]) -> Parser:
    """The parser of the command that these words name."""
    for word in words:
        children = parser.list_commands()
        if word in children:
            parser = children[word]
    return parser


def set_defaults(args: Any, defaults: Mapping[str, str]) -> None:
    """Settings of a framework count unless the user names a store or an application. `args.defaults` says which were
    taken."""
    args.defaults = []
    if getattr(args, "url", None) is None and getattr(args, "app", None) is None:
        for name, value in defaults.items():
            if getattr(args, name, "") is None:
                setattr(args, name, value)
                args.defaults.append(name)


if __name__ == "__main__":
    sys.exit(main())
