"""How a queue's own retention fits that of our records. Each adapter reads its queue's settings; this module judges
them, and is pure.

Two settings can do harm. If the queue may deliver a job again after its record has expired, the job runs again. If the
queue drops a result before its record expires, the queue has no result for a caller, although the record still has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from retrysafe.stores.diagnosis import Diagnosis, Finding, bad, good

if TYPE_CHECKING:
    from retrysafe.jobs.queue_adapter import QueueAdapter

SettingKind = Literal["redelivers", "keeps", "notices", "loses"]


class Setting(NamedTuple):
    """One setting of a queue.

    redelivers  how long after a job began the queue may still deliver it again
    keeps       how long the queue keeps a result
    notices     how long the queue takes to notice that a worker is dead
    loses       1.0 if a job is lost when its worker dies, else 0.0
    """

    name: str
    kind: SettingKind
    seconds: float
    fix: str


def diagnose_queue(adapter: QueueAdapter) -> Diagnosis:
    """The findings for every setting of an adapter's queue."""
    retention = min((task.policy.retention for task in adapter.tasks.values()), default=adapter.policy.retention)
    lease = max((task.policy.lease for task in adapter.tasks.values()), default=adapter.policy.lease)
    findings = tuple(judge_setting(setting, retention, lease) for setting in adapter.settings())
    return Diagnosis(adapter.queue, findings)


def judge_setting(setting: Setting, retention: float, lease: float) -> Finding:
    """`retention` is the shortest of all tasks, `lease` the longest; both in seconds."""
    name, kind, seconds, fix = setting
    shown, kept = format_duration(seconds), format_duration(retention)
    if kind == "loses":
        if not seconds:
            return good(name, "no", "a job whose worker dies is delivered again")
        why = "a job whose worker dies is lost from the queue; enqueueing it again with its key sends it again"
        return bad(name, "yes", "exactly-once-capable", why, fix)
    if kind == "redelivers":
        if seconds < retention:
            return good(name, shown, f"ends before the job's record expires ({kept})")
        why = f"the queue may deliver a job again after its record has expired ({kept}), and then the job runs again"
        return bad(name, shown, "best-effort", why, f"{fix}, or keep more: Policy(retention=…)")
    if kind == "notices":
        if seconds <= max(10 * lease, 600.0):
            return good(name, shown, "a dead worker's job is delivered again soon after its lease has lapsed")
        why = f"a dead worker's job waits this long, although its lease lapses after {format_duration(lease)}"
        return bad(name, shown, "exactly-once-capable", why, fix)
    if seconds >= retention:
        return good(name, shown, f"the queue keeps results as long as their records ({kept})")
    why = f"the queue drops results before their records expire ({kept}): then it has no result"
    return bad(name, shown, "exactly-once-capable", why, f"ask jobs.result(key) instead of the queue, or {fix}")


def format_duration(seconds: float) -> str:
    """A duration in the largest fitting unit, for people."""
    if seconds == float("inf"):
        return "for ever"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
