"""The headers of a delivery, in whatever form the server has them: text or bytes, a mapping or pairs, any case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from retrysafe.core.deprecation import renamed_members
from retrysafe.errors import VerificationError

MAX_VALUE_CHARS = 8192
"""Longer than any sender's list of signatures. Checked before anything is decoded or compared (S20)."""

Text = str | bytes


class _Pairs(Protocol):
    """A framework's own headers: Starlette's, Werkzeug's, Django's."""

    def items(self) -> Iterable[tuple[Any, Any]]: ...


HeaderPairs = Mapping[str, str] | Mapping[bytes, bytes] | Iterable[tuple[Text, Text]] | _Pairs


class Headers:
    """Header values by lower-case name. A header that was sent twice keeps both values and cannot be read: neither may
    be chosen."""

    __slots__ = ("_lines", "_sender")
    __getattr__ = renamed_members("Headers", {"one": "require", "maybe": "get", "iter_kept": "iter_except"})

    def __init__(self, given: HeaderPairs | Headers, sender: str) -> None:
        self._sender = sender
        self._lines: dict[str, list[str]] = {}
        if isinstance(given, Headers):
            self._lines = given._lines
            return
        for name, value in self._iter_pairs(given):
            self._lines.setdefault(self._to_text(name).lower(), []).append(self._to_text(value))

    def require(self, name: str) -> str:
        """The value of a header that must be there exactly once, in printable ASCII of a limited length."""
        value = self.get(name)
        if value is None:
            raise VerificationError(self._sender, f"there is no {name} header")
        return value

    def get(self, name: str) -> str | None:
        """`require`, but None if the header is missing."""
        lines = self._lines.get(name.lower())
        if lines is None:
            return None
        if len(lines) != 1:
            raise VerificationError(self._sender, f"{name} came {len(lines)} times")
        value = lines[0].strip(" \t")
        if len(value) > MAX_VALUE_CHARS:
            raise VerificationError(
                self._sender, f"{name} has {len(value)} characters; at most {MAX_VALUE_CHARS} are read"
            )
        if not (value.isascii() and value.isprintable()):
            raise VerificationError(self._sender, f"{name} has characters that are not printable ASCII")
        return value

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._lines

    def iter_except(self, names: frozenset[str]) -> Iterator[tuple[str, str]]:
        """Every header line except those with the given names."""
        for name, lines in self._lines.items():
            if name not in names:
                yield from ((name, line) for line in lines)

    def _iter_pairs(self, given: Any) -> Iterator[tuple[Any, Any]]:
        try:
            for pair in given.items() if hasattr(given, "items") else given:
                name, value = pair
                yield name, value
        except (TypeError, ValueError) as error:
            raise VerificationError(self._sender, f"the headers are not pairs of name and value ({error})") from None

    def _to_text(self, given: Any) -> str:
        if isinstance(given, str):
            return given
        if isinstance(given, bytes):
            return given.decode("latin-1")
        raise VerificationError(self._sender, f"a header is {type(given).__name__}, and neither text nor bytes")
