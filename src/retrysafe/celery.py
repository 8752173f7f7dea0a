"""Alias of `retrysafe.jobs.celery`: this is the import that people try first."""

from retrysafe.jobs.celery import CeleryJobs

__all__ = ["CeleryJobs"]
