"""The worker: services that finish what other processes began. Each has `run_once()`; any number of workers may run."""

from __future__ import annotations

from retrysafe.worker.publishers import HttpPublisher, RedisStreamPublisher
from retrysafe.worker.reconciler import Differences, Pairs, reconcile
from retrysafe.worker.service import Worker

__all__ = ["Differences", "HttpPublisher", "Pairs", "RedisStreamPublisher", "Worker", "reconcile"]
