"""An async body and its steps: the body finds its run, and a step that it did not await is found out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrysafe.errors import OperationError
from retrysafe.operations import run
from retrysafe.operations.run import OperationRun
from retrysafe.operations.steps import Step

if TYPE_CHECKING:
    from retrysafe.operations.operation import Operation


def current_run(operation: Operation, step: Step) -> OperationRun:
    attempt = run.current.get()
    if attempt is None or attempt.steps is not operation.steps:
        raise OperationError(
            f"step {step.name!r} was called outside the body of {operation.name!r}; call the operation instead"
        )
    return attempt


async def await_body(attempt: OperationRun, result: Any) -> Any:
    """Await an async body with `run.current` set, so that its steps find the attempt. A step that still runs when the
    body has ended (in a task of its own) is awaited before the run is settled, and makes it fail."""
    token = run.current.set(attempt)
    stop: BaseException | None = None
    try:
        return await result
    except Exception:
        raise
    except BaseException as error:
        stop = error
        raise
    finally:
        run.current.reset(token)
        attempt.body_ended = True
        if not isinstance(stop, GeneratorExit):
            await await_running_step(attempt, cancel=stop is not None)


def note_step_task(attempt: OperationRun) -> None:
    """Remember the task in which a step is about to run, unless another step runs already: then this one is refused."""
    import asyncio

    if not attempt.inside:
        attempt.step_task = asyncio.current_task()


async def await_running_step(attempt: OperationRun, *, cancel: bool) -> None:
    """Wait for the end of a step that the body did not await. `cancel`: the whole attempt is cancelled."""
    import asyncio

    from retrysafe.engine.cancellation import finish_despite_cancellation

    task: asyncio.Task[Any] | None = attempt.step_task
    if not attempt.inside or task is None or task is asyncio.current_task():
        return
    attempt.broken = attempt.broken or run.not_awaited_error(attempt.inside, "")
    if cancel:
        task.cancel()
    held = await finish_despite_cancellation(task, max_cancels=None if cancel else 0)
    if not cancel and held.first is not None:
        task.cancel()
        await finish_despite_cancellation(task)
        raise held.first
