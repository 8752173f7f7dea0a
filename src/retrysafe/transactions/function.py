"""`@safe.transactional("pay:{order_id}", tx=SessionLocal)`: a function whose writes commit with its result."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from retrysafe.core.records import Answer
from retrysafe.engine.codecs import encode_result
from retrysafe.engine.guard import Unstorable
from retrysafe.engine.once import Once, OnceCall, read_result
from retrysafe.errors import ResultNotStorable, UsageError
from retrysafe.transactions.run import aperform, perform

HANDLE_PARAMETER = "tx"
"""The argument that gets the connection or session. Callers do not pass it, and it is not part of the fingerprint."""


class TransactionalCall(OnceCall):
    """One call of the function, as the work of a transaction."""

    __slots__ = ()

    def call(self, handle: Any) -> Any:
        args, kwargs = insert_handle(self._once, self._args, self._kwargs, handle)
        return self._once.function(*args, **kwargs)

    def answer(self, result: Any) -> Answer:
        try:
            return encode_result(self._once.codec, result, self._once.policy.max_answer)
        except (TypeError, ValueError) as error:
            raise Unstorable(ResultNotStorable(self._once.name, str(error), rolled_back=True)) from error


def insert_handle(once: Once, args: tuple[Any, ...], kwargs: dict[str, Any], handle: Any) -> tuple[Any, Any]:
    """The caller's arguments with the handle added at its place in the signature."""
    given = once.signature.bind(*args, **kwargs).arguments
    full = inspect.signature(once.function)
    ordered = {
        name: handle if name == HANDLE_PARAMETER else given[name]
        for name in full.parameters
        if name in {*given, HANDLE_PARAMETER}
    }
    bound = inspect.BoundArguments(full, ordered)
    return bound.args, bound.kwargs


def choose_tx(once: Once, given: Any) -> Any:
    """The source of the function's transactions: its own, or that of RetrySafe at this moment."""
    tx = given if given is not None else once.safe.tx
    if tx is None:
        raise UsageError(
            f"{once.name} has no transaction to run in: pass tx= (a pool, a sessionmaker, a path, 'django:default') to "
            "@safe.transactional or to RetrySafe"
        )
    return tx


def wrap(once: Once, given: Any) -> Callable[..., Any]:
    """The decorated function, sync or async like the original. Its signature does not have the handle."""
    wrapped: Any
    if inspect.iscoroutinefunction(once.function):

        @functools.wraps(once.function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            task = once.build_task(args, kwargs)
            ended = await aperform(once.safe, task, choose_tx(once, given), TransactionalCall(once, args, kwargs))
            return read_result(once.name, once.codec, ended)

        wrapped = call_async
    else:

        @functools.wraps(once.function)
        def call_sync(*args: Any, **kwargs: Any) -> Any:
            task = once.build_task(args, kwargs)
            ended = perform(once.safe, task, choose_tx(once, given), TransactionalCall(once, args, kwargs))
            return read_result(once.name, once.codec, ended)

        wrapped = call_sync
    wrapped.__signature__ = once.signature
    result: Callable[..., Any] = wrapped
    return result
