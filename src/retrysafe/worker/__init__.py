"""The worker: what finishes what others began. Five services, each with `run_once()`; any number of processes."""

from __future__ import annotations

from retrysafe.worker.publishers import HttpPublisher, RedisStreamPublisher
from retrysafe.worker.reconciler import Differences, Pairs, reconcile
from retrysafe.worker.service import Worker

__all__ = ["Differences", "HttpPublisher", "Pairs", "RedisStreamPublisher", "Worker", "reconcile"]
