"""Dramatiq: actors that run once.

    jobs = DramatiqJobs(safe, broker)

    @jobs.task(key="charge-{order_id}", max_retries=5)
    def charge(order_id: str, cents: int) -> str: ...

    jobs.enqueue(charge, ("order-7", 500))

The actor is an ordinary Dramatiq actor. The id of its message is the id of the job.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import dramatiq
from dramatiq.errors import RateLimitExceeded, Retry
from dramatiq.middleware import CurrentMessage, Middleware
from dramatiq.results import Results

from retrysafe.errors import InProgress
from retrysafe.jobs.delivery import compute_busy_delay
from retrysafe.jobs.enqueue_flow import JobMessage
from retrysafe.jobs.queue_adapter import QueueAdapter
from retrysafe.jobs.retention import Setting
from retrysafe.jobs.task import FencedTask

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe


class RetryLater(Retry):
    """Another worker runs the job: deliver it again later, without counting a failure."""


class UncountWaits(Middleware):
    """Subtracts a wait from the count of retries before Dramatiq's own middleware adds it. This middleware is added
    last, and hooks that run after a message run in reverse order."""

    def after_process_message(
        self, broker: Any, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        if isinstance(exception, RetryLater):
            message.options["retries"] = message.options.get("retries", 0) - 1


class DramatiqJobs(QueueAdapter):
    """Actors of Dramatiq that run once per job."""

    queue = "Dramatiq"
    control: ClassVar[tuple[type[BaseException], ...]] = (Retry, RateLimitExceeded)

    def __init__(self, safe: RetrySafe, broker: dramatiq.Broker, **options: Any) -> None:
        super().__init__(safe, **options)
        self.broker = broker
        for middleware in (CurrentMessage, UncountWaits):
            if not any(isinstance(each, middleware) for each in broker.middleware):
                broker.add_middleware(middleware())

    def register(self, fenced: FencedTask, options: dict[str, Any]) -> Any:
        return dramatiq.actor(actor_name=fenced.name, broker=self.broker, **options)(wrap_task(fenced))

    def default_name(self, function: Callable[..., Any]) -> str:
        return function.__name__

    def name_of(self, task: Any) -> str:
        return str(task.actor_name) if isinstance(task, dramatiq.Actor) else super().name_of(task)

    def send(self, message: JobMessage) -> Any:
        countdown, queue, priority = message.delivery
        options = {} if priority is None else {"broker_priority": priority}
        actor = self.broker.get_actor(message.task)
        unnamed = actor.message_with_options(args=message.args, kwargs=message.kwargs, **options)
        if queue is not None:
            self.broker.declare_queue(queue)
        outgoing = unnamed.copy(message_id=message.id, queue_name=queue or unnamed.queue_name)
        return self.broker.enqueue(outgoing, delay=None if countdown is None else round(countdown * 1000))

    def unsupported_options(self) -> dict[str, str]:
        if getattr(self.broker, "max_priority", None):
            return {}
        why = "only RabbitmqBroker(max_priority=…) has priorities of messages; actors have theirs: task(priority=…)"
        return {"priority": why}

    def settings(self) -> list[Setting]:
        found = []
        heartbeat = getattr(self.broker, "heartbeat_timeout", None)
        if heartbeat is not None:
            found.append(
                Setting("heartbeat_timeout", "notices", heartbeat / 1000, "RedisBroker(heartbeat_timeout=60_000)")
            )
        for each in self.broker.middleware:
            if isinstance(each, Results):
                kept_seconds = float(each.result_ttl) / 1000
                found.append(Setting("Results(result_ttl=…)", "keeps", kept_seconds, "Results(result_ttl=…)"))
        return found


def wrap_task(fenced: FencedTask) -> Callable[..., Any]:
    """The function that Dramatiq calls. In a worker it runs the task behind the fence; called directly, it is the plain
    function."""

    @functools.wraps(fenced.function)
    def run(*args: Any, **kwargs: Any) -> Any:
        message = CurrentMessage.get_current_message()
        if message is None:
            if fenced.template is None:
                return fenced.function(*args, **kwargs)
            return fenced.run("", args, kwargs)
        try:
            return fenced.run(message.message_id, args, kwargs, message)
        except InProgress as busy:
            raise RetryLater(str(busy), delay=round(compute_busy_delay(busy) * 1000)) from busy

    del run.__wrapped__  # Dramatiq follows it, and would treat the wrapper of an async function as async
    return run
