"""`@safe.once("receipt:{order_id}")`: a function whose effect happens once per key."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from retrysafe.core.keys import Key, Template
from retrysafe.core.records import Answer, Record
from retrysafe.engine import arguments, codecs
from retrysafe.engine.codecs import Codec
from retrysafe.engine.guard import Ended, Task, Unstorable
from retrysafe.errors import ResultNotStorable, StoredFailure, TemplateError, UsageError
from retrysafe.policy import Policy

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

P = ParamSpec("P")
R = TypeVar("R")


class Once:
    """Everything about a decorated function that does not change from call to call."""

    def __init__(
        self,
        safe: RetrySafe,
        function: Callable[..., Any],
        template: str,
        *,
        ignore: Iterable[str],
        scope: str | None,
        policy: Policy,
        codec: Codec,
        hidden: str = "",
    ) -> None:
        """`hidden` names an argument that the caller does not pass, such as an open transaction."""
        refuse_generators(function)
        self.safe = safe
        self.function = function
        self.template = Template.parse(template)
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.signature = drop_parameter(inspect.signature(function), hidden, self.name)
        self.ignore = check_names("ignore", ignore, self.signature, self.name)
        check_names("the template", self.template.fields, self.signature, self.name)
        overlap = self.ignore & set(self.template.fields)
        if overlap:
            raise TemplateError(template, f"{sorted(overlap)} cannot be part of the key and ignored")
        self.scope = scope if scope is not None else self.name
        self.policy = policy
        self.codec = codec

    def build_task(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task:
        given = arguments.bind_arguments(self.signature, args, kwargs)
        described = {name: arguments.describe_legacy(given[name]) for name in self.template.fields}
        key = Key(self.template.fill(described), self.scope, "function")
        fingerprint = arguments.fingerprint_call(self.name, given, self.ignore)
        return self.safe.build_task(key, self.name, fingerprint, self.policy)


class OnceCall:
    """One call, as the GuardedWork of the guard."""

    __slots__ = ("_args", "_kwargs", "_once")

    def __init__(self, once: Once, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._once = once
        self._args = args
        self._kwargs = kwargs

    def call(self, record: Record) -> Any:
        return self._once.function(*self._args, **self._kwargs)

    def answer(self, result: Any) -> Answer:
        return encode_answer(self._once.name, self._once.codec, result, self._once.policy.max_answer)

    def failure(self, error: Exception) -> Answer:
        return codecs.encode_exception(error)


def read_result(name: str, codec: Codec, ended: Ended) -> Any:
    """The result of a call of the function `name`: what it returned here, or what is stored of an earlier run."""
    return read_answer(name, codec, ended.answer, ended.record.id) if ended.replayed else ended.result


def read_answer(name: str, codec: Codec, answer: Answer, record_id: bytes) -> Any:
    """The result in a stored answer. Raises StoredFailure if the stored result is an exception."""
    if answer.status == codecs.RAISED_STATUS:
        failure = codecs.decode_answer(codecs.JsonCodec(), answer, record_id)
        raise StoredFailure(name, failure["type"], failure["message"])
    return codecs.decode_answer(codec, answer, record_id)


def encode_answer(name: str, codec: Codec, result: Any, limit: int | None, *, rolled_back: bool = False) -> Answer:
    """A result as a stored answer. Raises Unstorable, whatever the codec raises: the function ran and must not run
    again, unless its effects were rolled back."""
    try:
        return codecs.encode_result(codec, result, limit)
    except Exception as error:
        raise Unstorable(ResultNotStorable(name, str(error), rolled_back=rolled_back)) from error


def wrap(once: Once) -> Callable[..., Any]:
    """The decorated function; async if the original is."""
    if inspect.iscoroutinefunction(once.function):

        @functools.wraps(once.function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            task = once.build_task(args, kwargs)
            ended = await once.safe.aguard(task, OnceCall(once, args, kwargs))
            return read_result(once.name, once.codec, ended)

        return call_async

    @functools.wraps(once.function)
    def call_sync(*args: Any, **kwargs: Any) -> Any:
        task = once.build_task(args, kwargs)
        ended = once.safe.guard(task, OnceCall(once, args, kwargs))
        return read_result(once.name, once.codec, ended)

    return call_sync


def build_decorator(make: Callable[[Callable[..., Any]], Once]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return cast("Callable[P, R]", wrap(make(function)))

    return decorate


def refuse_generators(function: Callable[..., Any]) -> None:
    if not callable(function) or isinstance(function, type | staticmethod | classmethod):
        raise UsageError(f"@once goes under @staticmethod/@classmethod and on functions only; got {function!r}")
    if not hasattr(function, "__qualname__"):
        raise UsageError(
            f"{function!r} has no name of its own, and the name is part of the key: wrap it in a def and decorate that"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{function.__qualname__} is a generator: what it yields cannot be replayed. Return a list, or put the "
            "effect into a function of its own and decorate that"
        )


def drop_parameter(signature: inspect.Signature, hidden: str, function: str) -> inspect.Signature:
    """The signature as callers see it."""
    if hidden:
        check_names("the decorator", hidden, signature, function)
    shown = [parameter for name, parameter in signature.parameters.items() if name != hidden]
    return signature.replace(parameters=shown)


def check_names(where: str, wanted: Iterable[str], signature: inspect.Signature, function: str) -> frozenset[str]:
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    for name in names:
        if name not in signature.parameters:
            raise UsageError(
                f"{where} names {name!r}, but {function} has no such argument; it has {', '.join(signature.parameters)}"
            )
    return frozenset(names)
