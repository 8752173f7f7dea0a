"""Alias of `retrysafe.jobs.celery`: this is the import that people try first."""

from retrysafe.core.extras import needs_extra

with needs_extra("celery", "retrysafe.celery"):
    from retrysafe.jobs.celery import CeleryJobs

__all__ = ["CeleryJobs"]
