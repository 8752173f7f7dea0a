"""What only Procrastinate has: locks of the user's own, and no ids chosen by the sender."""

from __future__ import annotations

import procrastinate
import pytest
from procrastinate.testing import InMemoryConnector

from retrysafe import RetrySafe
from retrysafe.jobs.procrastinate import LOCK_PREFIX, ProcrastinateJobs


class Reports:
    def __init__(self, **options: object) -> None:
        self.app = procrastinate.App(connector=InMemoryConnector())
        self.jobs = ProcrastinateJobs(RetrySafe("memory://"), self.app)
        self.runs: list[str] = []

        @self.jobs.task(name="report", **options)
        async def report(month: str) -> str:
            self.runs.append(month)
            return f"report of {month}"

        self.report = report

    async def work(self) -> None:
        await self.app.run_worker_async(wait=False, install_signal_handlers=False, listen_notify=False)


async def test_a_lock_of_the_users_own_is_not_the_jobs_name() -> None:
    """The lock says that two jobs may not wait at once. A second job, after the first one ran, is another job."""
    reports = Reports()
    async with reports.app.open_async():
        for _ in range(2):
            await reports.report.configure(queueing_lock="report").defer_async(month="may")
            await reports.work()
    assert reports.runs == ["may", "may"]


async def test_nor_is_one_that_the_task_was_declared_with() -> None:
    reports = Reports(queueing_lock="report")
    async with reports.app.open_async():
        for month in ("may", "june"):
            await reports.report.defer_async(month=month)
            await reports.work()
    assert reports.runs == ["may", "june"]


@pytest.mark.parametrize("declared", [{}, {"queueing_lock": "report"}])
async def test_a_job_that_was_enqueued_is_known_by_its_key(declared: dict[str, object]) -> None:
    reports = Reports(**declared)
    async with reports.app.open_async():
        first = await reports.jobs.aenqueue(reports.report, ("may",), key="report-may")
        assert first.sent
        (job,) = await reports.app.job_manager.list_jobs_async()
        assert job.queueing_lock == f"{LOCK_PREFIX}report-may"
        await reports.work()
        again = await reports.jobs.aenqueue(reports.report, ("may",), key="report-may")
        assert (again.sent, again.result) == (False, "report of may")
        # A second message with the same key is the same job, from any sender.
        await reports.report.configure(queueing_lock=f"{LOCK_PREFIX}report-may").defer_async(month="may")
        await reports.work()
    assert reports.runs == ["may"]
