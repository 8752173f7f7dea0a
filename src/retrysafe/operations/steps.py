"""Steps: what is declared once about each of them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from retrysafe.engine import typed
from retrysafe.errors import OperationError

Kind = Literal["local", "foreign"]
DAY = 86_400.0


@dataclass(frozen=True)
class Step:
    """A function of the operation, and what may be done with it when things go wrong."""

    name: str
    kind: Kind
    function: Callable[..., Any]
    undo: Callable[..., Any] | None = None
    find: Callable[..., Any] | None = None
    timeout: float = 20.0
    key_life: float = DAY
    repeatable: bool = True
    tries: int = 3
    service: str = ""

    def __post_init__(self) -> None:
        for name, value in (("timeout", self.timeout), ("key_life", self.key_life), ("tries", self.tries)):
            if not value > 0:
                raise OperationError(f"step {self.name!r}: {name}={value!r} must be above zero")
        if self.kind == "foreign" and "key" not in inspect.signature(self.function).parameters:
            raise OperationError(
                f"foreign step {self.name!r} takes no `key`: declare `*, key: str` and send it to the other system, "
                "so that a second try is recognised there"
            )

    @property
    def returns(self) -> Any:
        return typing.get_type_hints(self.function).get("return")

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The caller's arguments by name; what we pass ourselves (`tx`, `key`) is not among them."""
        signature = inspect.signature(self.function)
        ours = "key" if self.kind == "foreign" else next(iter(signature.parameters), "")
        theirs = signature.replace(parameters=[p for n, p in signature.parameters.items() if n != ours])
        given = theirs.bind(*args, **kwargs)
        given.apply_defaults()
        return dict(given.arguments)

    def dump_args(self, args: dict[str, Any]) -> str:
        """Kept only for steps that can be undone: an undo may run in another process, long after."""
        return typed.dump({name: typed.to_plain(value) for name, value in args.items()}) if self.undo else ""

    def load_args(self, text: str) -> dict[str, Any]:
        hints = typing.get_type_hints(self.function)
        return {name: typed.from_plain(value, hints.get(name)) for name, value in typed.load(text, None).items()}
