"""What a queue's own memory is worth beside ours. Each adapter reads its settings; the judgement is here, and pure.

Two of them can hurt. If the queue may deliver a job again after we have forgotten it, it runs again. If the queue
forgets a result before we do, whoever asks the queue is told that there is none, while we still have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from retrysafe.stores.diagnosis import Diagnosis, Finding, bad, good

if TYPE_CHECKING:
    from retrysafe.jobs.queue_adapter import QueueAdapter

Kind = Literal["redelivers", "keeps", "notices", "loses"]


class Setting(NamedTuple):
    """One setting of a queue.

    redelivers  how long after a job began the queue may still deliver it again
    keeps       how long the queue keeps a result
    notices     how long the queue takes to notice that a worker is dead
    loses       1.0 when a job is gone with the worker that died with it, else 0.0
    """

    name: str
    kind: Kind
    seconds: float
    fix: str


def diagnose_queue(fence: QueueAdapter) -> Diagnosis:
    kept = min((task.policy.retention for task in fence.tasks.values()), default=fence.policy.retention)
    lease = max((task.policy.lease for task in fence.tasks.values()), default=fence.policy.lease)
    findings = tuple(judge_setting(setting, kept, lease) for setting in fence.settings())
    return Diagnosis(fence.queue, findings)


def judge_setting(setting: Setting, kept: float, lease: float) -> Finding:
    """`kept`: our shortest retention; `lease`: our longest lease."""
    name, kind, seconds, fix = setting
    if kind == "loses":
        if not seconds:
            return good(name, "no", "a job whose worker dies is delivered again")
        why = "a job whose worker dies is gone from the queue; enqueueing it again with its key sends it again"
        return bad(name, "yes", "exactly-once-capable", why, fix)
    if kind == "redelivers":
        if seconds < kept:
            return good(name, format_duration(seconds), f"over before we forget the job ({format_duration(kept)})")
        why = f"the queue may deliver a job again after we forgot it ({format_duration(kept)}), and then it runs again"
        return bad(name, format_duration(seconds), "best-effort", why, f"{fix}, or keep more: Policy(retention=…)")
    if kind == "notices":
        if seconds <= max(10 * lease, 600.0):
            return good(
                name, format_duration(seconds), "a dead worker's job comes back soon after its lease has lapsed"
            )
        why = f"a dead worker's job waits this long, although its lease lapses after {format_duration(lease)}"
        return bad(name, format_duration(seconds), "exactly-once-capable", why, fix)
    if seconds >= kept:
        return good(
            name, format_duration(seconds), f"the queue keeps results as long as we do ({format_duration(kept)})"
        )
    why = f"the queue forgets results before we do ({format_duration(kept)}): it then answers that there is none"
    return bad(
        name,
        format_duration(seconds),
        "exactly-once-capable",
        why,
        f"ask jobs.result(key) instead of the queue, or {fix}",
    )


def format_duration(seconds: float) -> str:
    """A duration for people."""
    if seconds == float("inf"):
        return "for ever"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
