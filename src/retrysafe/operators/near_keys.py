"""Keys that were perhaps meant: "did you mean" for `keys show`, `keys why` and the commands that act on a key."""

from __future__ import annotations

from retrysafe.core.records import Record

MAX_CANDIDATES = 2_000
MAX_LENGTH_DIFFERENCE = 4
MIN_LIKENESS = 0.7
MIN_PART_LENGTH = 3
"""How long a text must be to be looked for inside keys."""


class NearKeys:
    """Keys that look like the one that was asked for, collected while a search reads records anyway: `charge:7` was
    asked for, and `charge:{7}` is there; or `order-7`, which is all that a ticket says. Bounded, and cheap for each
    record."""

    def __init__(self, key: str) -> None:
        self._key, self._plain = key, simplify(key)
        self._exact: dict[str, None] = {}
        self._containing: dict[str, None] = {}
        self._candidates: dict[str, None] = {}

    def look_at(self, record: Record) -> None:
        key = record.key
        if self._key in key and len(key) > len(self._key) >= MIN_PART_LENGTH and simplify(key) != self._plain:
            if len(self._containing) < MAX_CANDIDATES:
                self._containing[key] = None
            return
        if abs(len(key) - len(self._key)) > MAX_LENGTH_DIFFERENCE or key == self._key:
            return
        if simplify(key) == self._plain:
            if len(self._exact) < MAX_CANDIDATES:
                self._exact[key] = None
        elif len(self._candidates) < MAX_CANDIDATES:
            self._candidates[key] = None

    def find(self) -> list[str]:
        """At most three, the likeliest first."""
        import difflib  # only where nothing was found

        like = difflib.get_close_matches(self._key, list(self._candidates), 3, MIN_LIKENESS)
        return [*self._exact, *sorted(self._containing, key=len), *like][:3]

    def describe(self) -> str:
        """`; did you mean 'charge:{7}'?`, or nothing."""
        found = self.find()
        return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""


def guess_keys(key: str) -> list[str]:
    """How a key template would have written it: `charge:7` as `charge:{7}` and `charge:{"7"}`; and without marks."""
    head, colon, rest = key.partition(":")
    marked = [f"{head}:{{{rest}}}", f'{head}:{{"{rest}"}}'] if colon else []
    plain = "".join(each for each in key if each not in "{}\"'")
    return [guess for guess in dict.fromkeys([*marked, plain, key.lower(), key.strip()]) if guess and guess != key]


def simplify(key: str) -> str:
    """A key without case and without the marks that key templates add: `charge:{"A7"}` as `charge:a7`."""
    return "".join(each for each in key.lower() if each not in "{}\"' ")
