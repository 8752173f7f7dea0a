"""arq: functions that run once.

    jobs = ArqJobs(safe, RedisSettings())

    @jobs.task(key="charge-{order_id}")
    async def charge(order_id: str, cents: int) -> str: ...

    class WorkerSettings:
        functions = jobs.functions

    await jobs.aenqueue(charge, ("order-7", 500))

A function that needs arq's `ctx` is declared with `@jobs.task(context=True)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar

from arq import Retry, create_pool, func
from arq.connections import ArqRedis, RedisSettings
from arq.constants import result_key_prefix, retry_key_prefix

from retrysafe.errors import InProgress
from retrysafe.jobs.delivery import ClientPerLoop, compute_busy_delay
from retrysafe.jobs.enqueue_flow import JobMessage
from retrysafe.jobs.queue_adapter import QueueAdapter
from retrysafe.jobs.retention import Setting
from retrysafe.jobs.task import FencedTask

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

KEEP_RESULT_SECONDS = 3600.0
JOB_TIMEOUT_SECONDS = 300.0


class ArqJobs(QueueAdapter):
    """Tasks of arq that run once per job."""

    queue = "arq"
    control: ClassVar[tuple[type[BaseException], ...]] = (Retry,)

    def __init__(
        self,
        safe: RetrySafe,
        redis: RedisSettings | ArqRedis,
        *,
        queue_name: str | None = None,
        keep_result: float = KEEP_RESULT_SECONDS,
        job_timeout: float = JOB_TIMEOUT_SECONDS,
        **options: Any,
    ) -> None:
        """`redis` is either settings, from which each event loop gets its own pool, or a pool of yours, for one
        loop."""
        super().__init__(safe, **options)
        self.queue_name = queue_name
        self.keep_result = keep_result
        self.job_timeout = job_timeout
        self.functions: list[Any] = []
        """For `WorkerSettings.functions`."""
        self._redis = (
            ClientPerLoop(lambda: create_pool(redis))
            if isinstance(redis, RedisSettings)
            else ClientPerLoop(make_pool_getter(redis))
        )

    def register(self, fenced: FencedTask, options: dict[str, Any]) -> Any:
        timing = {"keep_result": self.keep_result, "timeout": self.job_timeout, **options}
        function = func(wrap_task(fenced), name=fenced.name, **timing)
        self.functions.append(function)
        return function

    async def asend(self, message: JobMessage) -> Any:
        redis = await self._redis.get()
        if message.again:
            # arq refuses an id whose result it still keeps, and the failure of the last attempt is a result too.
            await redis.delete(result_key_prefix + message.id)
        countdown, queue, _ = message.delivery
        return await redis.enqueue_job(
            message.task,
            *message.args,
            _job_id=message.id,
            _queue_name=queue or self.queue_name,
            _defer_by=countdown or None,
            **message.kwargs,
        )

    def unsupported_options(self) -> dict[str, str]:
        return {"priority": "it takes jobs in the order of their time; use queue= with workers of its own"}

    def settings(self) -> list[Setting]:
        return [
            Setting("keep_result", "keeps", self.keep_result, "ArqJobs(keep_result=…)"),
            Setting("job_timeout", "notices", self.job_timeout + 10, "ArqJobs(job_timeout=…)"),
        ]


def make_pool_getter(redis: ArqRedis) -> Callable[[], Awaitable[ArqRedis]]:
    """A function that gives the user's own pool, whichever loop asks."""

    async def get_pool() -> ArqRedis:
        return redis

    return get_pool


def wrap_task(fenced: FencedTask) -> Callable[..., Awaitable[Any]]:
    """The coroutine function that arq calls in a worker."""

    async def run(ctx: dict[Any, Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return await fenced.arun(ctx["job_id"], args, kwargs, ctx)
        except InProgress as busy:
            # arq has counted this delivery as a try. Waiting for another worker must not use up a try.
            await ctx["redis"].decr(retry_key_prefix + ctx["job_id"])
            raise Retry(defer=compute_busy_delay(busy)) from busy

    run.__name__, run.__qualname__ = fenced.function.__name__, fenced.function.__qualname__
    run.__module__, run.__doc__ = fenced.function.__module__, fenced.function.__doc__
    return run
