"""Tools of an MCP server that are safe to call again: a model that calls `send_payment` twice pays once.

    tools = retrysafe.mcp.Tools(safe, scope="acct-1")

    @server.tool()
    @tools.once("pay:{invoice}")
    async def send_payment(invoice: str, cents: int) -> str: ...

Two calls are the same call if they have the same key. The key comes from the first of these that is there:

1.  the key template: the developer knows what must not happen twice;
2.  the key in the request's `_meta`, sent by a harness that retries;
3.  the argument `idempotency_key`, if the tool has one: the model chooses it, and its description says to keep it;
4.  equal arguments within `same_within` seconds of the first such call, if the tool sets that.

Never the session or the request id: a retry has new ones. See docs/decisions/0052-keys-of-tool-calls.md.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeVar, get_type_hints

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from retrysafe.core.keys import Key, Template
from retrysafe.core.ops import Lookup
from retrysafe.core.records import Answer, Record
from retrysafe.core.times import SECOND_MICROS, duration_to_micros
from retrysafe.engine import arguments, codecs, dedup_window
from retrysafe.engine.codecs import Codec, ResultCodec
from retrysafe.engine.guard import Ended, Task
from retrysafe.engine.once import check_names, drop_parameter, encode_answer, read_result, refuse_generators
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import RetrySafeError, StoredFailure, TemplateError, UsageError
from retrysafe.policy import DAY, Policy
from retrysafe.web.problems import redact

META_KEY = "retrysafe/idempotency-key"
"""The name of the key in a request's `_meta`."""
KEY_ARGUMENT = "idempotency_key"
CONTEXT_PARAMETER = "retrysafe_context"
"""The parameter in which the SDK passes the request, if the tool does not ask for the context itself."""

MAX_SAME_WITHIN_SECONDS = 30.0 * DAY
SHOWN_DIGITS = 16
"""How many digits of a record's id are shown; `retrysafe keys show` takes them."""

F = TypeVar("F", bound=Callable[..., Any])
Scope = str | Callable[[Any], str | Awaitable[str]]


class Tools:
    """The tools of one server. `scope` is the owner of the calls: a text if the server serves one user (stdio), else a
    function from the SDK's `Context` to the authenticated principal, never to anything that the model may choose. It
    may be async if the tools are."""

    def __init__(
        self,
        safe: RetrySafe,
        *,
        scope: Scope,
        policy: Policy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not (callable(scope) or (isinstance(scope, str) and scope)):
            raise UsageError(
                f"Tools(scope={scope!r}): every key belongs to somebody; give a name for a server with one user, or a "
                "function from the Context to the authenticated caller"
            )
        self.safe = safe
        self.scope = scope
        self.policy = (policy or safe.policy or Policy.preset("function")).for_functions()
        self.clock = clock

    def once(
        self,
        key: str = "",
        *,
        same_within: float = 0.0,
        ignore: Iterable[str] = (),
        name: str = "",
        policy: Policy | None = None,
        codec: Codec | None = None,
    ) -> Callable[[F], F]:
        """Under `@server.tool()`: the tool's effect happens once per key, and every call returns its result.

        `key` names arguments, like `"pay:{invoice}"`. `same_within` applies to calls without a key: calls with equal
        arguments within that many seconds of the first one are one call. `name` is part of the keys; by default it is
        the function's own name.
        """

        def decorate(function: F) -> F:
            tool = Tool(
                self,
                function,
                key=key,
                same_within=same_within,
                ignore=frozenset(ignore),
                name=name,
                policy=policy,
                codec=codec,
            )
            return tool.build_wrapper()  # type: ignore[return-value]  # the same signature, and the context

        return decorate


class ToolCallPlan(NamedTuple):
    """The tasks of one call: `own` runs the tool; `before`, if set, is held meanwhile."""

    own: Task
    before: Task | None = None


class Tool:
    """A decorated tool: everything that does not change from call to call."""

    def __init__(
        self,
        tools: Tools,
        function: Callable[..., Any],
        *,
        key: str,
        same_within: float,
        ignore: frozenset[str],
        name: str,
        policy: Policy | None,
        codec: Codec | None,
    ) -> None:
        refuse_generators(function)
        self.safe, self._scope, self.function = tools.safe, tools.scope, function
        self.name = name or function.__name__
        self._own_context = find_context_parameter(function)
        self.signature = drop_parameter(inspect.signature(function), self._own_context, self.name)
        self._template = Template.parse(key) if key else None
        self._ignore = check_names("ignore", ignore, self.signature, self.name)
        check_names("the template", self._template.fields if self._template else (), self.signature, self.name)
        self._has_argument = KEY_ARGUMENT in self.signature.parameters
        self._clock = tools.clock
        self._window_micros = parse_same_within(same_within, self.name)
        if self._template and same_within:
            raise UsageError(f"{self.name}: a key template says what the same call is; leave same_within out")
        self._policy = policy or tools.policy
        self.codec = codec or ResultCodec(function, sealed=self.safe.sealed)
        self.limit = self._policy.max_answer
        if not self.is_async and inspect.iscoroutinefunction(self._scope):
            raise self._async_scope_error()

    # A call -----------------------------------------------------------------------------------------------------------

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def plan_call(self, scope: str, context: Any, kwargs: dict[str, Any]) -> ToolCallPlan:
        """The task to guard, and the task to hold before it."""
        given = arguments.bind_arguments(self.signature, (), kwargs)
        fingerprint = arguments.fingerprint_call(self.name, given, self._ignore | {KEY_ARGUMENT})
        chosen_key, retention = self._choose_key(context, given)

        def build_task(text: str, retention: float) -> Task:
            key = Key(f"{self.name} {text}", scope, "tool")
            policy = self._policy.replace(retention=retention)
            return self.safe.build_task(key, f"tool {self.name}", fingerprint, policy)

        if chosen_key is not None:
            return ToolCallPlan(build_task(chosen_key, retention))
        window = dedup_window.window_number(int(self._clock() * SECOND_MICROS), self._window_micros)
        same_call = f"same:{fingerprint.digest.hex()}"
        # A window is read by calls in that window and in the next one, so its records live for two windows.
        two_windows = 2 * self._window_micros / SECOND_MICROS
        before, own = (build_task(f"{same_call}:{number}", two_windows) for number in (window - 1, window))
        return ToolCallPlan(own, dedup_window.build_holding_task(before))

    def _choose_key(self, context: Any, given: dict[str, Any]) -> tuple[str | None, float]:
        """The key of a call and its retention in seconds. The key is None if equal arguments and time decide."""
        if self._template is not None:
            fields = {name: arguments.describe_legacy(given[name]) for name in self._template.fields}
            return self._template.fill(fields), self._policy.retention
        meta_key = (context.request_context.meta or {}).get(META_KEY)
        if meta_key is not None:
            return f"meta:{check_key(meta_key, f'_meta[{META_KEY!r}]')}", min(self._policy.retention, 30 * DAY)
        if self._has_argument and given[KEY_ARGUMENT]:
            return f"argument:{check_key(given[KEY_ARGUMENT], KEY_ARGUMENT)}", min(self._policy.retention, 30 * DAY)
        if self._window_micros:
            return None, 0.0
        fix = f"pass {KEY_ARGUMENT}: a new random text for each new intention, the same one again for a retry"
        if not self._has_argument:
            fix = f"the client must send a key in _meta[{META_KEY!r}]"
        raise ToolError(f"{self.name} was not run: it does something that must not happen twice; {fix}")

    def run(self, context: Any, call: ToolCall) -> Any:
        """Run the tool once, or return its stored result."""
        plan = call.plan = self.plan_call(self._read_scope(context), context, call.kwargs)
        if plan.before is not None:
            seen = self.safe.execute(Lookup(plan.before.key.id(plan.before.namespace)))
            if not dedup_window.is_other_call(seen, self._window_micros):
                holding = dedup_window.HoldingWork(call, lambda: self.read_result(self.safe.guard(plan.own, call)))
                return self.read_result(self.safe.guard(plan.before, holding))
        return self.read_result(self.safe.guard(plan.own, call))

    async def arun(self, context: Any, call: ToolCall) -> Any:
        """`run` on an event loop."""
        scope = self._scope if isinstance(self._scope, str) else self._scope(context)
        owner = await scope if inspect.isawaitable(scope) else scope
        plan = call.plan = self.plan_call(check_scope(owner), context, call.kwargs)

        async def run_guarded() -> Any:
            return self.read_result(await self.safe.aguard(plan.own, call))

        if plan.before is not None:
            seen = await self.safe.aexecute(Lookup(plan.before.key.id(plan.before.namespace)))
            if not dedup_window.is_other_call(seen, self._window_micros):
                return self.read_result(
                    await self.safe.aguard(plan.before, dedup_window.HoldingWork(call, run_guarded))
                )
        return await run_guarded()

    def _read_scope(self, context: Any) -> str:
        scope = self._scope if isinstance(self._scope, str) else self._scope(context)
        if not inspect.isawaitable(scope):
            return check_scope(scope)
        if inspect.iscoroutine(scope):
            scope.close()
        raise self._async_scope_error()

    def _async_scope_error(self) -> UsageError:
        return UsageError(
            f"Tools(scope=…) is async, and the tool {self.name} is a plain function, which cannot wait for it: make "
            "the tool `async def`, or the scope a plain function"
        )

    def read_result(self, ended: Ended) -> Any:
        return read_result(self.name, self.codec, ended)

    # The function the SDK registers -----------------------------------------------------------------------------------

    def build_wrapper(self) -> Callable[..., Any]:
        wrapper: Any
        if self.is_async:

            @functools.wraps(self.function)
            async def call_async(**kwargs: Any) -> Any:
                context, call = self._build_call(kwargs)
                try:
                    return await self.arun(context, call)
                except RetrySafeError as error:
                    raise translate_error(error, call.plan) from error

            wrapper = call_async
        else:

            @functools.wraps(self.function)
            def call_sync(**kwargs: Any) -> Any:
                context, call = self._build_call(kwargs)
                try:
                    return self.run(context, call)
                except RetrySafeError as error:
                    raise translate_error(error, call.plan) from error

            wrapper = call_sync
        self._set_signature(wrapper)
        typed: Callable[..., Any] = wrapper
        return typed

    def _build_call(self, kwargs: dict[str, Any]) -> tuple[Any, ToolCall]:
        context = kwargs.pop(self._own_context or CONTEXT_PARAMETER)
        given = {self._own_context: context} if self._own_context else {}
        return context, ToolCall(self, kwargs, given)

    def _set_signature(self, wrapper: Any) -> None:
        """Give the wrapper the tool's own parameters, which become the tool's schema, and one for the context, which
        does not."""
        del wrapper.__wrapped__  # inspect.signature() would follow it to the function's own signature
        hints = get_type_hints(self.function, include_extras=True)
        shown = inspect.signature(self.function)
        parameters = [
            each.replace(annotation=hints.get(each.name, each.annotation)) for each in shown.parameters.values()
        ]
        if not self._own_context:
            parameters.append(inspect.Parameter(CONTEXT_PARAMETER, inspect.Parameter.KEYWORD_ONLY, annotation=Context))
            hints[CONTEXT_PARAMETER] = Context
        wrapper.__annotations__ = hints
        wrapper.__signature__ = shown.replace(
            parameters=parameters, return_annotation=hints.get("return", shown.return_annotation)
        )


class ToolCall:
    """One call, as work for the guard."""

    __slots__ = ("_direct", "_tool", "kwargs", "plan")

    def __init__(self, tool: Tool, kwargs: dict[str, Any], direct: dict[str, Any]) -> None:
        self._tool = tool
        self._direct = direct
        self.kwargs = kwargs
        self.plan: ToolCallPlan | None = None
        """Set when the caller and the key are known."""

    def call(self, record: Record) -> Any:
        return self._tool.function(**self.kwargs, **self._direct)

    def answer(self, result: Any) -> Answer:
        return encode_answer(self._tool.name, self._tool.codec, result, self._tool.limit)

    def failure(self, error: Exception) -> Answer:
        return codecs.encode_exception(error)


def translate_error(error: RetrySafeError, plan: ToolCallPlan | None) -> Exception:
    """The error as a ToolError, which the model can read and act upon. A UsageError, the developer's mistake, is not
    translated: it fails the call, and the model never sees its text.

    The SDK logs the text, so it names records and not keys (S28).
    """
    if isinstance(error, UsageError) and not isinstance(error, TemplateError):
        return error
    if isinstance(error, StoredFailure):
        return ToolError(str(error))  # the text of the tool's own exception
    text = str(error)
    for task in (plan.own, plan.before) if plan is not None else ():
        if task is not None:
            record = task.key.id(task.namespace).hex()[:SHOWN_DIGITS]
            text = redact(text.replace(repr(task.key.value), record), task.key.value, task.key.scope)
    return ToolError(text)


def check_key(value: object, where: str) -> str:
    """Return the key of a tool call, or raise a `ToolError` that the model can read."""
    if not isinstance(value, str) or not 1 <= len(value) <= 255 or not value.isprintable():
        size = (
            f"has {len(value)} characters, or some that are not printable" if isinstance(value, str) else "is no text"
        )
        raise ToolError(f"{where} {size}; give 1 to 255 printable characters")
    return value


def check_scope(value: object) -> str:
    """Return the scope, or raise a `UsageError`."""
    if not isinstance(value, str) or not value:
        raise UsageError(f"Tools(scope=…) gave {value!r}: every key belongs to somebody, so give the caller's name")
    return value


def parse_same_within(value: object, name: str) -> int:
    """`same_within` in microseconds; zero if it is not set."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SAME_WITHIN_SECONDS:
        raise UsageError(
            f"{name}: same_within={value!r}: give seconds, at most {MAX_SAME_WITHIN_SECONDS:g}; "
            "for longer, give the call a key"
        )
    return duration_to_micros(value)


def find_context_parameter(function: Callable[..., Any]) -> str:
    """The name of the parameter that takes the SDK's context; empty if the tool has none."""
    for name, hint in get_type_hints(function).items():
        kinds = (hint, *getattr(hint, "__args__", ()))
        if name != "return" and any(inspect.isclass(each) and issubclass(each, Context) for each in kinds):
            return name
    return ""
