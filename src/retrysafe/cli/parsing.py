"""The parsers of the commands: examples in every help text, "did you mean", and a store URL that may stand anywhere."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from retrysafe.stores.schemes import is_store_scheme

_CHOICE = re.compile(r"invalid choice: '([^']*)'")
_FILE = re.compile(r"unrecognized arguments: (?:.* )?([^-\s]\S*\.(db|sqlite|sqlite3|duckdb))(?: |$)")
_ADDRESS = re.compile(r"unrecognized arguments: (?:.* )?https?://")
_NO_VALUE = re.compile(r"argument (?:\S+/)?(-{1,2}[\w-]+): expected one argument")
_NO_OPERAND = re.compile(r"arguments are required|unrecognized arguments: -\w")
_UNKNOWN = re.compile(r"unrecognized arguments: (-{1,2}[\w-]+)")


class Parser(argparse.ArgumentParser):
    """An argument parser. `takes_url`: the first argument that is the URL of a store becomes `--url`, wherever it
    stands. So the URL can be left out, which argparse cannot do for a positional argument before another one. Unless
    `url_only`, the application may be named instead. `takes_app`: the same for MODULE:SAFE, the first of more than this
    many positional arguments. `rewrite` translates spellings of an older release."""

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str] = (),
        takes_url: bool = False,
        takes_app: int | None = None,
        url_only: bool = False,
        rewrite: Callable[[list[str]], list[str]] | None = None,
        **options: Any,
    ) -> None:
        if examples:
            options["epilog"] = "examples:\n" + "\n".join(f"  {each}" for each in examples)
        options.setdefault("formatter_class", Formatter)
        options["allow_abbrev"] = False
        super().__init__(*args, **options)
        self.takes_url, self.takes_app, self.rewrite = takes_url, takes_app, rewrite
        self._words: list[str] = []
        if takes_app is not None:
            self.add_argument(
                "--app",
                metavar="MODULE:SAFE",
                help="your RetrySafe (also as the first argument; else RETRYSAFE_APP or a file, see `config`)",
            )
        if takes_url and not url_only:
            self.add_argument(
                "--app", metavar="MODULE:SAFE", help="your RetrySafe instead of a URL; it reads what is encrypted"
            )
        if takes_url:
            self.add_argument(
                "--url",
                metavar="URL",
                help="the store (also as an argument; else RETRYSAFE_URL, retrysafe.toml or [tool.retrysafe])",
            )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if args is not None:
            args = list(args) if self.rewrite is None else self.rewrite(list(args))
            if self.takes_url:
                self._check_one_store(args)
                args = move_url(args, self._takes_value)
            args = args if self.takes_app is None else move_app(args, self._takes_value, self.takes_app)
            self._words = args
        return super().parse_known_args(args, namespace)

    def _check_one_store(self, args: list[str]) -> None:
        named = list_urls(args, self._takes_value)
        if len(named) > 1:
            from retrysafe.core.urls import safe_url  # only for wrong input

            self.error(f"two stores: {' and '.join(map(safe_url, named))}; give one of them")

    def _takes_value(self, option: str) -> bool:
        action = self._option_string_actions.get(option)
        return action is not None and action.nargs != 0

    def error(self, message: str) -> NoReturn:
        hint = suggest(message, self._list_choices(), list(self._option_string_actions))
        operands = any(not each.option_strings for each in self._actions)
        super().error(f"{message}{hint or explain_dash(message, self._words, self._option_string_actions, operands)}")

    def list_commands(self) -> dict[str, Parser]:
        """The parsers of the commands below this one, by their names."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return dict(action.choices)
        return {}

    def _list_choices(self) -> list[str]:
        return [str(name) for action in self._actions for name in (action.choices or ())]


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Wraps descriptions, and leaves the examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def move_url(args: list[str], takes_value: Callable[[str], bool]) -> list[str]:
    """The arguments with `--url` before the first one that is a store URL and not the value of an option."""
    for place, each in enumerate(args):
        if each == "--":
            break
        if place and args[place - 1].startswith("-") and takes_value(args[place - 1]):
            continue
        if is_store_url(each):
            return [*args[:place], f"--url={each}", *args[place + 1 :]]
    return args


def list_urls(args: list[str], takes_value: Callable[[str], bool]) -> list[str]:
    """The stores that these arguments name: by `--url`, and as an argument of their own."""
    found = []
    for place, each in enumerate(args):
        if each == "--":
            break
        before = args[place - 1] if place else ""
        if each.startswith("--url="):
            found.append(each.removeprefix("--url="))
        elif before == "--url" or (not (before.startswith("-") and takes_value(before)) and is_store_url(each)):
            found.append(each)
    return found


def is_store_url(text: str) -> bool:
    return "://" in text and is_store_scheme(text.partition("://")[0])


def move_app(args: list[str], takes_value: Callable[[str], bool], others: int) -> list[str]:
    """The arguments with `--app` before the first positional one, if there are more than `others` of them."""
    places = []
    for place, each in enumerate(args):
        if each.startswith("-") or (place and args[place - 1].startswith("-") and takes_value(args[place - 1])):
            continue
        places.append(place)
    if len(places) <= others or "--app" in args:
        return args
    first = places[0]
    return [*args[:first], f"--app={args[first]}", *args[first + 1 :]]


MAX_NUMBER = 2**31 - 1
"""Above all that is sensible, and what every store and clock takes."""


def check_values(values: Mapping[str, Any]) -> None:
    """Raise UsageError for a number that no store takes, and for text that is not Unicode."""
    from retrysafe.errors import UsageError  # not needed for --help

    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:  # `not`: NaN compares with nothing
            raise UsageError(f"{option} {value}: give a number up to {MAX_NUMBER}")
        if isinstance(value, str) and any("\ud800" <= each <= "\udfff" for each in value):
            raise UsageError(f"{option} {value!r}: this is no text in UTF-8; check the encoding of your terminal")


def suggest(message: str, choices: Sequence[str], options: Sequence[str]) -> str:
    """`; did you mean 'list'?`, or nothing. A file is offered as the URL of a store."""
    file = _FILE.search(message)
    if file is not None:
        scheme = "duckdb" if file.group(2) == "duckdb" else "sqlite"
        return f"; a store is named by its URL: did you mean {scheme}:///{file.group(1)}?"
    if _ADDRESS.search(message) and "--url" in options:
        return "; an http:// address is no store: give one like sqlite:///app.db"
    wrong = _CHOICE.search(message) or _UNKNOWN.search(message)
    if wrong is None:
        return ""
    import difflib  # only for wrong input

    meant = wrong.group(1)
    if meant.startswith("-"):  # the dashes are in each of them, and make short ones alike
        near = difflib.get_close_matches(meant.lstrip("-"), [each.lstrip("-") for each in options], 1)
        near = [each for each in options if each.lstrip("-") in near][:1]
    else:
        near = difflib.get_close_matches(meant, choices, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def explain_dash(message: str, words: Sequence[str], options: Collection[str], takes_operand: bool) -> str:
    """How to write a value that begins with a dash, as every 64th random key in base64 does; or nothing. argparse takes
    it for an option, so it says that the value is missing."""
    wanted = _NO_VALUE.search(message)
    for before, word in zip(["", *words], words, strict=False):
        if not word.startswith("-") or word in options or word == "--":
            continue
        if wanted is not None and before == wanted.group(1):
            return f"; a value that begins with '-' is written {before}={word}"
        if not word.startswith("--") and _NO_OPERAND.search(message) and takes_operand:
            return f"; a key or an id that begins with '-' stands last, after '--': -- {word}"
    return ""


def add_json(parser: argparse.ArgumentParser, text: str = "print one JSON object per line") -> None:
    parser.add_argument("--json", action="store_true", help=text)


def add_namespace(parser: argparse.ArgumentParser, *, acts: bool) -> None:
    whose = "the application (default: the setting, else 'default')" if acts else "only this application (all)"
    parser.add_argument("--namespace", help=whose)


def add_reason(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--because", metavar="TEXT", help="the reason; it is stored in the audit row (required)")
    parser.add_argument("--by", metavar="NAME", help="who you are, for the audit row (the user of this machine)")


def add_bulk(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--yes", action="store_true", help="do it; without this, a bulk command only shows what it would do"
    )
    parser.add_argument("--cap", type=int, default=1000, metavar="N", help="change at most this many (1000)")
