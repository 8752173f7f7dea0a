"""Steps: the declaration of each step of an operation, checked when it is declared."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from retrysafe.engine import typed
from retrysafe.errors import OperationError
from retrysafe.policy import DAY

StepKind = Literal["local", "foreign"]


@dataclass(frozen=True)
class Step:
    """A function of the operation, and how it is retried, looked up and undone."""

    name: str
    kind: StepKind
    function: Callable[..., Any]
    undo: Callable[..., Any] | None = None
    find: Callable[..., Any] | None = None
    timeout: float = 20.0
    key_life: float = DAY
    repeatable: bool = True
    tries: int = 3
    service: str = ""
    backoff: tuple[float, ...] = ()
    """Seconds before each further try. The last is used for all that follow. Empty: the default pauses."""
    final: tuple[type[Exception], ...] = ()
    """Errors after which no further try is made: the step has failed for good, in every attempt."""
    deadline: float | None = None
    """Seconds after the first sending. After that a foreign step is not sent again."""

    def __post_init__(self) -> None:
        for name, value in (("timeout", self.timeout), ("key_life", self.key_life), ("tries", self.tries)):
            if not is_number(value) or not value > 0:
                raise OperationError(f"step {self.name!r}: {name}={value!r} must be a number above zero")
        if math.isinf(self.timeout):
            raise OperationError(
                f"step {self.name!r}: timeout={self.timeout!r}: give seconds, which a lease can outlast"
            )
        if not isinstance(self.tries, int) or self.tries > MAX_TRIES:
            raise OperationError(
                f"step {self.name!r}: tries={self.tries!r} must be a whole number of calls, at most {MAX_TRIES}"
            )
        if not isinstance(self.repeatable, bool):
            raise OperationError(f"step {self.name!r}: repeatable={self.repeatable!r}: give True or False")
        if not isinstance(self.service, str):
            raise OperationError(f"step {self.name!r}: service={self.service!r} must be a text: it is part of the key")
        self._check_retrying()
        for name, helper in (("undo", self.undo), ("find", self.find)):
            if helper is not None and not callable(helper):
                raise OperationError(f"step {self.name!r}: {name}={helper!r} is not a function")
        if self.kind == "local" and (self.find is not None or not self.repeatable):
            raise OperationError(
                f"local step {self.name!r} takes neither `find` nor `repeatable`: it commits with its recovery point, "
                "so it happened exactly if that is there"
            )
        parameters = inspect.signature(self.function).parameters
        if self.kind == "foreign" and "key" not in parameters:
            raise OperationError(
                f"foreign step {self.name!r} takes no `key`: declare `*, key: str` and send it to the other system, "
                "so that a second try is recognised there"
            )
        if self.kind == "local" and not parameters:
            raise OperationError(f"local step {self.name!r} takes no `tx`: declare it as its first argument")
        self._check_parameters()

    def _check_parameters(self) -> None:
        """Refuse a step, an undo or a find that could never be called. An undo that fails so would be found out when
        something has to be undone."""
        handles = 1 if self.kind == "local" else 0  # `tx` is passed by position
        own = [*inspect.signature(self.function).parameters.values()][handles:]
        for each in own:
            if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
                raise OperationError(
                    f"step {self.name!r} declares `{each}`: its arguments are stored by name, so give each one a name"
                )
        offered = {each.name for each in own}
        for_undo, for_find = read_parameters(self.undo), read_parameters(self.find)
        if for_undo == [] and handles:
            raise OperationError(f"step {self.name!r}: its undo takes no `tx`: declare it as its first argument")
        if for_undo is not None:
            self._check_undo(for_undo[handles:], {*offered, "result"})
        if for_find is not None:
            self._check_find(for_find, offered)

    def _check_undo(self, wanted: list[inspect.Parameter], offered: set[str]) -> None:
        missing = [each.name for each in wanted if is_required(each) and each.name not in offered]
        if missing:
            raise OperationError(
                f"step {self.name!r}: its undo takes {missing[0]!r}, which nobody gives it; it gets "
                f"{', '.join(sorted(offered))}, and may leave out any of them"
            )

    def _check_find(self, wanted: list[inspect.Parameter], offered: set[str]) -> None:
        """A find gets every argument, so it must take them all."""
        named = {each.name for each in wanted if each.kind is not each.POSITIONAL_ONLY}
        takes_all = any(each.kind is each.VAR_KEYWORD for each in wanted) or offered <= named
        missing = [each.name for each in wanted if is_required(each) and each.name not in offered]
        if missing or not takes_all:
            raise OperationError(
                f"step {self.name!r}: its find is called with {', '.join(sorted(offered))} by name, and takes "
                f"{', '.join(each.name for each in wanted) or 'nothing'}"
            )

    def _check_retrying(self) -> None:
        pauses = self.backoff
        if not isinstance(pauses, tuple) or not all(is_number(p) and 0 <= p < DAY for p in pauses):
            raise OperationError(f"step {self.name!r}: backoff={pauses!r} must be a tuple of seconds, like (0.1, 1, 5)")
        kinds = self.final
        if not isinstance(kinds, tuple) or not all(isinstance(k, type) and issubclass(k, Exception) for k in kinds):
            raise OperationError(f"step {self.name!r}: final={kinds!r} must be a tuple of exception classes")
        above_zero = self.deadline is None or (is_number(self.deadline) and self.deadline > 0)
        if self.deadline is not None and (self.kind == "local" or not self.repeatable or not above_zero):
            raise OperationError(
                f"step {self.name!r}: deadline={self.deadline!r} is a number of seconds above zero, for foreign steps "
                "that may be sent again"
            )

    @property
    def returns(self) -> Any:
        return read_type_hints(self.function).get("return")

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def bind_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The caller's arguments by name, without those that we pass ourselves (`tx`, `key`)."""
        signature = inspect.signature(self.function)
        ours = "key" if self.kind == "foreign" else next(iter(signature.parameters), "")
        theirs = signature.replace(parameters=[p for n, p in signature.parameters.items() if n != ours])
        given = theirs.bind(*args, **kwargs)
        given.apply_defaults()
        return dict(given.arguments)

    def dump_args(self, args: dict[str, Any], *, sealed: bool) -> str:
        """The arguments as text. Empty if the step has no undo: only an undo needs them, maybe in another process."""
        return typed.dump(args, typed.secrets_rule(sealed)) if self.undo else ""

    def load_args(self, text: str) -> dict[str, Any]:
        known = read_type_hints(self.function)
        plain = typed.load(text, None) if text else {}
        return {name: typed.from_plain(value, known.get(name)) for name, value in plain.items()}


MAX_TRIES = 1000


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_parameters(function: Callable[..., Any] | None) -> list[inspect.Parameter] | None:
    """The parameters of a function. None if there is no function, or if it does not show them."""
    try:
        return None if function is None else [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return None


def is_required(parameter: inspect.Parameter) -> bool:
    optional = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in optional


@lru_cache(maxsize=512)
def read_type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """A function's annotations as types. Read at the first call, because a class may be declared after the function."""
    try:
        return typing.get_type_hints(function)
    except NameError as error:
        raise OperationError(
            f"the annotations of {function.__qualname__} cannot be read ({error}); name types that stand at the top "
            "of the module, so that a worker that resumes the operation finds them"
        ) from error


def check_options(step: str, kind: str, options: dict[str, Any]) -> None:
    """Refuse options that would have no effect: whoever gives them expects one."""
    ignored = [name for name in ("timeout", "key_life", "service") if kind == "local" and name in options]
    if ignored:
        raise OperationError(
            f"local step {step!r} takes no `{ignored[0]}`, which is for calls to other systems; if it must end in "
            "time, set a statement timeout in your database"
        )
    unused = [name for name in ("tries", "backoff") if name in options and options[name] not in (1, ())]
    if kind == "foreign" and options.get("repeatable") is False and unused:
        raise OperationError(
            f"step {step!r}: {unused[0]}={options[unused[0]]!r} has no effect with repeatable=False, which is sent "
            "once; leave it out"
        )
