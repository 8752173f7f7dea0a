"""Fuzz a parser with malformed input: it may only raise the error that it documents.

    python tools/fuzz.py keys --count 10000000 [--seed 7]
    python tools/fuzz.py webhooks --count 10000000          that many for each scheme; webhooks-stripe is one of them
    python tools/fuzz.py speedups --count 1000000           the compiled helper against its definitions

Prints how many inputs were tried, accepted and refused. The first unexpected result ends the run and prints its input.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # a script has only its own folder on the path, not the root

from tools import fuzz_speedups, fuzz_webhooks

from retrysafe.core.keys import MAX_KEY_CHARS, parse_key
from retrysafe.errors import MalformedKey

SEEDS = (
    "8e03978e-40d5-43e8-bc93-6894a57f9324",
    '"8e03978e-40d5-43e8-bc93-6894a57f9324"',
    '"a\\"b\\\\c"', '"unterminated', '"', '""', "", " ", "a,b", "a b", "\ta\t", "x" * MAX_KEY_CHARS,
    "x" * (MAX_KEY_CHARS + 1),
    '"' + "y" * MAX_KEY_CHARS + '"', "naïve", "\ud800", "k\0", "k\r\nSet-Cookie: a=b", "k\n", "＂k＂", '"k";p=1', "'k'",
    ":YQ==:",
)  # fmt: skip
ODD_CHARACTERS = '",\\ \t\r\n\0\x7f\x80ÿ…\ud800;=:{}()[]<>@?/' + "aZ09-_.~!*'"


def generate_keys(rng: random.Random) -> Iterator[str]:
    """Mutations of good and bad keys: characters inserted or removed, text rotated or repeated."""
    while True:
        text = rng.choice(SEEDS)
        for _ in range(rng.randrange(4)):
            index = rng.randrange(len(text) + 1)
            kind = rng.randrange(4)
            if kind == 0:
                text = text[:index] + rng.choice(ODD_CHARACTERS) + text[index:]
            elif kind == 1:
                text = text[:index] + text[index + 1 :]
            elif kind == 2:
                text = text[index:] + text[:index]
            else:
                text = text[:index] + text
        yield text


def check_key(text: str) -> bool:
    """True if the key was accepted. An accepted key must be valid. A refusal must be a MalformedKey."""
    try:
        key = parse_key(text)
    except MalformedKey:
        return False
    assert 1 <= len(key) <= MAX_KEY_CHARS, f"length {len(key)}"
    assert all("\x21" <= each <= "\x7e" for each in key), "an invisible character got through"
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert parse_key(quoted) == key, "the quoted form is another key"
    return True


TARGETS: dict[str, tuple[Callable[[random.Random], Iterator[Any]], Callable[[Any], bool]]] = {
    "keys": (generate_keys, check_key),
    **fuzz_webhooks.TARGETS,
    **fuzz_speedups.TARGETS,
}
GROUPS = {"webhooks": tuple(fuzz_webhooks.TARGETS), "speedups": tuple(fuzz_speedups.TARGETS)}


def fuzz(target: str, count: int, seed: int) -> tuple[int, int]:
    """The number of accepted and refused inputs. An unexpected result is raised with its input."""
    generate, check = TARGETS[target]
    accepted = 0
    for number, text in zip(range(count), generate(random.Random(seed)), strict=False):
        try:
            accepted += check(text)
        except BaseException as error:
            raise AssertionError(f"{target} input {number} of seed {seed}: {text!r}: {error!r}") from error
    return accepted, count - accepted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=[*TARGETS, *GROUPS])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for target in GROUPS.get(args.target, (args.target,)):
        started = time.monotonic()
        accepted, refused = fuzz(target, args.count, args.seed)
        seconds = time.monotonic() - started
        print(
            f"{target}: {args.count} tried, {accepted} accepted, {refused} refused, all as expected ({seconds:.0f} s)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
