"""RetrySafe: the object that users make. It serves sync and async code, and opens no connection until it is used."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, ParamSpec, Self, TypeVar

from retrysafe.core.keys import Key
from retrysafe.core.ops import Op
from retrysafe.core.records import Answer, Fingerprint, Record
from retrysafe.core.trace_context import encode_traceparent
from retrysafe.engine import once as once_module
from retrysafe.engine.codecs import Codec, ResultCodec
from retrysafe.engine.drive import FirstReply, arun, run
from retrysafe.engine.effects import Flow
from retrysafe.engine.events import NO_SERIES, EventHook, Events, Series
from retrysafe.engine.figures import Figures
from retrysafe.engine.guard import Ended, GuardedWork, Task, guard
from retrysafe.engine.heartbeat import BeatName, Heartbeat, Lease, StopCallback
from retrysafe.engine.perform import Performer
from retrysafe.engine.sealing import KeyRing, Sealer
from retrysafe.engine.worker_notify import WorkerNotifier
from retrysafe.errors import StoreURLError, SyncAsyncMismatch, UsageError
from retrysafe.policy import Policy
from retrysafe.stores.base import AsyncStore, Store, provides
from retrysafe.stores.registry import find_backend, open_async_store, open_store, safe_url

if TYPE_CHECKING:
    from retrysafe.engine.aperform import AsyncPerformer
    from retrysafe.engine.trace import Trace, TraceCallback
    from retrysafe.operations.operation import Operation
    from retrysafe.stores.caches import CacheSetting
    from retrysafe.stores.tiered import MemoryCache
    from retrysafe.transactions.block import Block

P = ParamSpec("P")
R = TypeVar("R")


class RetrySafe:
    """Made from a store's URL, or from stores you built around your own pool or client. `RetrySafe()` takes the URL
    from the environment variable `RETRYSAFE_URL`.

    `namespace` separates applications that share a store; `policy` is what routes and functions start from;
    `keyring` encrypts what is stored; `on_event` is called with each event; `tx` says how to open your own transactions
    (a pool, a sessionmaker, "django:default"); `batching` sends calls that have to wait to the store together;
    `cache` ("memory://", "redis://…") replays completed records without asking the store (docs/reference/stores.md);
    `forms="current"` writes new operations in forms that the release before this one refuses (docs/howto/deploying.md);
    `trace` is called with the name and duration of each claim, statement and settlement (docs/howto/tracing.md).
    """

    on_made: ClassVar[list[Callable[[RetrySafe], None]]] = []
    """Called with each object when it is made, by tools that instrument programs from outside."""

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        async_store: AsyncStore | None = None,
        namespace: str = "default",
        policy: Policy | None = None,
        keyring: KeyRing | None = None,
        on_event: EventHook | None = None,
        tx: Any = None,
        batching: bool = True,
        cache: str | MemoryCache | None = None,
        forms: Literal["previous", "current"] = "previous",
        trace: TraceCallback | None = None,
    ) -> None:
        if forms not in ("previous", "current"):
            raise UsageError(f"forms={forms!r}: 'previous' while older releases share the store, 'current' after that")
        self.forms = forms
        if not isinstance(namespace, str) or not namespace or len(namespace) > 255 or "\0" in namespace:
            raise UsageError(
                f"namespace={namespace!r}: give 1 to 255 characters of text without NUL, one name per application"
            )
        self.namespace = namespace
        self.policy = policy
        self.tx = tx
        self.operations: dict[str, Operation] = {}
        self.publishers: dict[str, Callable[..., Any]] = {}
        self.providers: set[str] = set()
        self.worker_notifier = WorkerNotifier(namespace)
        self.figures = Figures()
        self.events = Events(on_event, self.figures)
        self._sealer = Sealer(keyring)
        self._url = ""
        self._batching = batching
        self._sync, self._async = self._open_stores(store, async_store, cache)
        self.figures.store = (self._sync or self._async).capabilities.name  # type: ignore[union-attr]  # there is one
        if trace is not None and not callable(trace):
            raise UsageError(f"trace={trace!r}: give a function of one TraceEvent, or leave it out")
        self._trace_callbacks = [] if trace is None else [trace]
        self._current_traceparent: Callable[[], str] | None = None
        self._trace_lock = threading.Lock()
        self._trace: Trace | None = None
        self._start_trace()
        self._heartbeat = Heartbeat(lambda: self.store, self._record_beat)
        self._performer: Performer | None = None
        self._async_performer: AsyncPerformer | None = None
        for made in self.on_made:
            made(self)

    def _open_stores(
        self, store: str | Store | None, async_store: AsyncStore | None, cache: str | MemoryCache | None
    ) -> tuple[Store | None, AsyncStore | None]:
        if store is None and async_store is None:
            store = os.environ.get("RETRYSAFE_URL") or None
        if isinstance(store, str):
            if async_store is not None:
                raise UsageError("give a URL, or stores of your own; not both")
            # A private memory store has to be the same store in sync and async code.
            self._url = store + os.urandom(8).hex() if store == "memory://" else store
            find_backend(self._url)
            setting = None if cache is None else _read_cache(cache, self._url)
            on_batch = self.figures.observe_batch
            return (
                open_store(self._url, batching=self._batching, on_batch=on_batch, cache=setting),
                open_async_store(self._url, batching=self._batching, on_batch=on_batch, cache=setting),
            )
        if cache is not None:
            raise UsageError("cache= goes with a URL; put stores of your own into Tiered(store, cache)")
        if store is None and async_store is None:
            raise StoreURLError(
                "RetrySafe() needs a store: give its URL, RetrySafe('sqlite:///app.db'), or a store of your own, or "
                "set the environment variable RETRYSAFE_URL (only commands read retrysafe.toml and [tool.retrysafe])"
            )
        if store is not None and not isinstance(store, Store):
            raise StoreURLError(
                f"RetrySafe({store!r}) is neither a URL nor a store; for an async one pass async_store="
            )
        if async_store is not None and not provides(async_store, AsyncStore):
            raise StoreURLError(f"async_store={async_store!r} is not an async store; pass a sync one as store=")
        return store, async_store

    @property
    def url(self) -> str:
        """The URL that this object was made from; empty if it was made from stores. It may hold a password."""
        return self._url

    @property
    def store(self) -> Store:
        """The sync store."""
        if self._sync is None:
            raise SyncAsyncMismatch(
                "this RetrySafe has only an async store; call it from async code, or also pass store="
            )
        return self._sync

    @property
    def async_store(self) -> AsyncStore:
        """The async store."""
        if self._async is None:
            raise SyncAsyncMismatch(
                "this RetrySafe has only a sync store; call it from sync code, or also pass async_store="
            )
        return self._async

    @property
    def has_sync(self) -> bool:
        """Whether there is a sync store."""
        return self._sync is not None

    @property
    def counters(self) -> dict[str, int]:
        """How often each event has happened in this process, by name."""
        return self.events.counts()

    @property
    def sealed(self) -> bool:
        """Whether what is stored is encrypted."""
        return self._sealer.active

    def build_task(  # noqa: PLR0917  (by position: every request comes here)
        self,
        key: Key,
        target: str,
        fingerprint: Fingerprint,
        policy: Policy,
        series: Series | None = None,
        input: bytes = b"",
        alternatives: Sequence[Fingerprint] = (),
    ) -> Task:
        """Build the Task of a call. `series` is for figures, if `target` may hold a path. `alternatives` are
        fingerprints of the same request in the forms of older releases; the key ring adds its own (S12)."""
        if self._current_traceparent is not None:
            input = encode_traceparent(self._current_traceparent(), input)
        if not alternatives and not self._sealer.active:
            return Task(key, self.namespace, target, fingerprint, policy, input, (), series or (key.kind, target))
        first, *others = self._sealer.fingerprint_forms((fingerprint, *alternatives))
        return Task(key, self.namespace, target, first, policy, input, tuple(others), series or (key.kind, target))

    # Functions ------------------------------------------------------------------------------

    def once(
        self,
        key: str,
        *,
        ignore: Iterable[str] = (),
        scope: str | None = None,
        policy: Policy | None = None,
        codec: Codec | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Make a function safe to call again: its effect happens once per key, and its result comes back each time.

        `key` names arguments: `"receipt:{order_id}"`. The other arguments are compared: the same key with other
        arguments is an error, unless they are in `ignore`.
        """
        chosen = (policy or self.policy or Policy.preset("function")).for_functions()

        def make(function: Callable[..., Any]) -> once_module.Once:
            return once_module.Once(
                self,
                function,
                key,
                ignore=ignore,
                scope=scope,
                policy=chosen,
                codec=codec or ResultCodec(function, sealed=self.sealed),
            )

        return once_module.build_decorator(make)

    # Transactions ---------------------------------------------------------------------------

    def transaction(
        self,
        tx: Any,
        *,
        key: str | Key,
        scope: str | None = None,
        request: Any = None,
        target: str = "",
        policy: Policy | None = None,
    ) -> Block:
        """`with safe.transaction(pool, key="charge-7", scope="acct-1", request=body) as tx:`, or `async with`.

        What the block writes through `tx.handle` and the answer it sets commit together, once. `request` is what the
        key stands for, in plain data: the same key with another request is an error.
        """
        from retrysafe.transactions.block import Block, build_block_task

        return Block(self, tx, build_block_task(self, key, scope, request=request, target=target, policy=policy))

    def transactional(
        self,
        key: str,
        *,
        tx: Any = None,
        ignore: Iterable[str] = (),
        scope: str | None = None,
        policy: Policy | None = None,
        codec: Codec | None = None,
    ) -> Callable[[Callable[..., R]], Callable[..., R]]:
        """`once` for work in one database. The function's argument `tx` is the connection or session; what the function
        writes there commits together with its result. Callers do not pass `tx`. If the
        decorator has no `tx=`, that of RetrySafe is used."""
        from retrysafe.transactions import function as transactional

        chosen = (policy or self.policy or Policy.preset("function")).for_functions()

        def decorate(function: Callable[..., R]) -> Callable[..., R]:
            once = once_module.Once(
                self,
                function,
                key,
                ignore=ignore,
                scope=scope,
                policy=chosen,
                codec=codec or ResultCodec(function, sealed=self.sealed),
                hidden=transactional.HANDLE_PARAMETER,
            )
            return transactional.wrap(once, tx)

        return decorate

    # Operations -----------------------------------------------------------------------------

    def operation(
        self, name: str, *, version: int = 1, policy: Policy | None = None, max_attempts: int = 10
    ) -> Operation:
        """Declare work that calls other systems: steps and a body, which survive a crash at any instruction."""
        from retrysafe.operations.operation import Operation

        made = Operation(self, name, version, policy, max_attempts)
        if made.target in self.operations:
            raise UsageError(f"operation {made.target!r} is declared already; give another name or version")
        self.operations[made.target] = made
        self.figures.expect_runs(name)
        return made

    def publish(self, topic: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Register the function, sync or async, that delivers the jobs of a topic (`"*"`: of all other topics). It is
        called with a `Job`."""

        def register(function: Callable[P, R]) -> Callable[P, R]:
            self.publishers[topic] = function
            return function

        return register

    # Manual resolution ----------------------------------------------------------------------

    def resolve(
        self,
        which: Key | str | bytes,
        *,
        happened: bool,
        answer: Answer | None = None,
        because: str = "",
        attempt: int | None = None,
    ) -> Record:
        """Resolve an uncertain key, given as a Key or a record's id. Either it happened, with this answer or with an
        answer that nobody has; or it did not happen, and then the next retry runs it. Raises NotUncertain if its owner
        or another operator was first. With `attempt`, only that attempt is resolved."""
        return self.run(self._resolve_flow(which, happened, answer, because, attempt))

    async def aresolve(
        self,
        which: Key | str | bytes,
        *,
        happened: bool,
        answer: Answer | None = None,
        because: str = "",
        attempt: int | None = None,
    ) -> Record:
        return await self.arun(self._resolve_flow(which, happened, answer, because, attempt))

    def _resolve_flow(
        self, which: Key | str | bytes, happened: bool, answer: Answer | None, because: str, attempt: int | None
    ) -> Flow[Record]:
        from retrysafe.engine.resolving import parse_record_id, resolve_uncertain  # seldom needed

        return resolve_uncertain(
            parse_record_id(which, self.namespace),
            happened=happened,
            answer=answer,
            because=because,
            namespace=self.namespace,
            attempt=attempt,
            events=self.events,
        )

    # Flows ----------------------------------------------------------------------------------

    def guard(self, task: Task, work: GuardedWork) -> Ended:
        """Run `work` once for `task`, or return the stored answer."""
        return self.run(guard(task, work, self.events))

    async def aguard(self, task: Task, work: GuardedWork) -> Ended:
        return await self.arun(guard(task, work, self.events))

    def run(self, flow: Flow[R], first: FirstReply | None = None) -> R:
        """Drive a flow. `first`: the caller has performed the flow's first effect itself."""
        return run(flow, self.performer(), first)

    def arun(self, flow: Flow[R], first: FirstReply | None = None) -> Coroutine[Any, Any, R]:
        return arun(flow, self._async_performer or self.async_performer(), first)

    def performer(self) -> Performer:
        if self._performer is None:
            self._performer = self._make_performer()
        return self._performer

    def _make_performer(self) -> Performer:
        self._start_trace()
        if self._trace is None:
            return Performer(self.store, self._heartbeat, self._sealer, self.figures)
        from retrysafe.engine.trace import TracedPerformer

        return TracedPerformer(self.store, self._heartbeat, self._sealer, self._trace, self.figures)

    def async_performer(self) -> AsyncPerformer:
        if self._async_performer is None:
            self._async_performer = self._make_async_performer()
        return self._async_performer

    def _make_async_performer(self) -> AsyncPerformer:
        from retrysafe.engine.aheartbeat import AsyncHeartbeat  # with asyncio, which sync programs need not load
        from retrysafe.engine.aperform import AsyncPerformer

        self._start_trace()
        beats = AsyncHeartbeat(self.async_store, self._record_beat)
        if self._trace is None:
            return AsyncPerformer(self.async_store, beats, self._sealer, self.figures)
        from retrysafe.engine.atrace import AsyncTracedPerformer

        return AsyncTracedPerformer(self.async_store, beats, self._sealer, self._trace, self.figures)

    def add_trace(self, callback: TraceCallback, current_traceparent: Callable[[], str] | None = None) -> None:
        """Call `callback` with each event of the trace, as `trace=` does. `current_traceparent` returns the W3C
        `traceparent` of the caller, or an empty text: records keep that of their first run. Raises UsageError if this
        object was used already."""
        if self._performer is not None or self._async_performer is not None:
            raise UsageError(
                "a trace has to be set up before the first call: call retrysafe.otel.instrument(safe), or add_trace, "
                "where the RetrySafe object is made"
            )
        self._trace_callbacks.append(callback)
        self._current_traceparent = current_traceparent or self._current_traceparent
        self._start_trace()

    @property
    def trace(self) -> Trace | None:
        """The trace, if there is one."""
        return self._trace

    def _record_beat(self, name: BeatName, record_id: bytes) -> None:
        """A renewal that went well is counted and is no event: there are many of them."""
        if name == "renewed":
            self.figures.count("renewed", NO_SERIES)
        else:
            self.events.emit(name, record_id)

    def _start_trace(self) -> None:
        """Wrap the stores, if a callback was given or the logger `retrysafe.trace` is on. This runs when the object is
        made and when it is first used: many programs set up logging in between."""
        if self._trace is not None or not (self._trace_callbacks or _is_trace_logged()):
            return
        with self._trace_lock:
            self._wrap_stores()

    def _wrap_stores(self) -> None:
        if self._trace is not None:
            return  # another thread was first
        from retrysafe.engine.trace import AsyncTracedStore, Trace, TracedStore

        trace = Trace(self._trace_callbacks)
        if self._sync is not None:
            self._sync = TracedStore(self._sync, trace)
        if self._async is not None:
            self._async = AsyncTracedStore(self._async, trace)
        self._trace = trace

    def keep(self, lease: Lease, duration: float) -> StopCallback:
        """Keep a lease alive until the returned function is called: for callers that cannot yield `Invoke`."""
        return self._heartbeat.start(lease, duration)

    def akeep(self, lease: Lease, duration: float) -> StopCallback:
        """The same on the running event loop."""
        return self.async_performer().heartbeat.start(lease, duration)

    def execute(self, op: Op[R]) -> R:
        """Execute one storage operation: encrypted, and sent again where needed. For tools."""
        return self.performer().execute(op)

    async def aexecute(self, op: Op[R]) -> R:
        return await self.async_performer().execute(op)

    # Lifetime -------------------------------------------------------------------------------

    def migrate(self) -> list[str]:
        """Create or upgrade the store's tables. Returns the names of the migrations that were applied."""
        return self.store.migrate()

    def close(self) -> None:
        self._heartbeat.stop()
        if self._performer is not None:
            self._performer.close()
        if self._sync is not None:
            self._sync.close()

    async def aclose(self) -> None:
        """Close the stores: what the running loop uses, and the sync side."""
        if self._async_performer is not None:
            await self._async_performer.aclose()
        if self._async is not None:
            await self._async.aclose()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"RetrySafe({safe_url(self._url) or self._sync or self._async!r}, namespace={self.namespace!r})"


def _is_trace_logged() -> bool:
    """Whether the logger `retrysafe.trace` is enabled for DEBUG. A program that has not imported logging has not done
    that, and need not import it for this check."""
    logging = sys.modules.get("logging")
    return logging is not None and logging.getLogger("retrysafe.trace").isEnabledFor(logging.DEBUG)


def _read_cache(given: str | MemoryCache, store_url: str) -> CacheSetting:
    from retrysafe.stores.caches import CacheSetting, name_place  # few programs have a cache

    return CacheSetting(given, name_place(store_url))
