"""The input of an operation: its arguments, as they are stored with the claim and read by later code."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from retrysafe.core import values
from retrysafe.core.fingerprint import fingerprint_text
from retrysafe.core.ops import Claim
from retrysafe.core.records import Fingerprint, Record
from retrysafe.core.states import State
from retrysafe.engine import typed
from retrysafe.errors import ArgumentError, OperationChanged, OperationError
from retrysafe.operations.arguments_digest import digest_arguments
from retrysafe.operations.steps import read_type_hints


class InputCodec:
    """Writes and reads the arguments of one operation, and compares those of two calls."""

    def __init__(self, name: str, target: str, body: Callable[..., Any]) -> None:
        self._name, self._target, self._body = name, target, body

    def encode(self, given: dict[str, Any], *, sealed: bool) -> bytes:
        """The arguments as they are stored. They are read back once here, before the claim."""
        try:
            text = typed.dump(given, typed.secrets_rule(sealed)).encode()
            self.decode(text)
        except OperationError:
            raise
        except Exception as error:
            raise ArgumentError(
                f"the arguments of operation {self._name!r} cannot be stored and read back: {error}. Pass plain data, "
                "or values of annotated dataclasses, pydantic models, structs"
            ) from error
        return text

    def decode(self, stored: bytes) -> dict[str, Any]:
        known = read_type_hints(self._body)
        return {name: typed.from_plain(value, known.get(name)) for name, value in load_plain(stored).items()}

    def read(self, stored: bytes) -> dict[str, Any]:
        """The stored arguments. Raises OperationChanged if this code cannot read them: the run is left for other code,
        and nothing is undone because of it."""
        try:
            given = self.decode(stored)
            inspect.signature(self._body).bind(**given)
        except OperationError:
            raise
        except Exception as error:
            raise OperationChanged(
                self._target, f"its input cannot be read by this code ({type(error).__name__}: {str(error)[:200]})"
            ) from error
        return given

    def is_same_call(self, record: Record, claim: Claim) -> bool:
        """True if the arguments of a record, read by this code, are equal to those of a call, whatever class names and
        defaults the code had that stored them. Raises OperationChanged if this code cannot read them, because a client
        must not be told to use another key.

        A finished run only needs its answer, so newer fields that this code does not have are left out there: this code
        leaves them out of its own requests, too."""
        if not record.input:
            return False
        wanted = digest_arguments(self._body, self.read(claim.input))
        try:
            stored = self.read(record.input)
        except OperationChanged:
            if record.state is State.COMPLETED and wanted and wanted == self._digest_known_part(record, claim):
                return True
            raise
        return wanted != "" and wanted == digest_arguments(self._body, stored)

    def _digest_known_part(self, record: Record, claim: Claim) -> str:
        """The digest of the stored arguments without the fields that the call does not have. Empty if this code cannot
        read them even so."""
        try:
            known = keep_known_fields(load_plain(record.input), load_plain(claim.input))
            return digest_arguments(self._body, self.read(values.dumps(known).encode()))
        except (OperationChanged, ValueError):
            return ""


def load_plain(stored: bytes) -> Any:
    """Stored arguments as plain data, before they become values of the types that this code declares."""
    return typed.load(stored.decode(), None)


def keep_known_fields(stored: Any, given: Any) -> Any:
    """Plain data without the fields that other plain data does not have at the same place."""
    if isinstance(stored, dict) and isinstance(given, dict):
        return {name: keep_known_fields(item, given[name]) for name, item in stored.items() if name in given}
    if isinstance(stored, list | tuple) and type(stored) is type(given) and len(stored) == len(given):
        return type(stored)(keep_known_fields(*pair) for pair in zip(stored, given, strict=True))
    return stored


def fingerprint_for_request(name: str, request: Fingerprint) -> Fingerprint:
    """The fingerprint of an operation over HTTP: of its name and the request's own fingerprint."""
    return fingerprint_text("op1", values.dumps([name, str(request)]))
