"""The probe: a thread that asks an unreachable store whether it is back. Its twin for event loops is
`AsyncPerformer._probe_until_back` (aperform.py)."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from retrysafe.core.ops import Lookup
from retrysafe.engine.circuit import FIRST_PROBE_SECONDS, CircuitBreaker, next_pause, proves_contact
from retrysafe.stores.base import Store


class Probe:
    """Starts with the first claim that is refused, and ends when no node is away any more or `stop` is called."""

    def __init__(self, store: Store, circuit: CircuitBreaker) -> None:
        self._store = store
        self._circuit = circuit
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._pid != os.getpid():
            self._reset()  # after a fork the thread exists only in the parent
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(
                    target=self._probe_until_back, args=(self._stopped,), name="retrysafe-probe", daemon=True
                )
                with suppress(RuntimeError):  # no thread can be started: the next refused claim tries again
                    thread.start()
                    self._thread = thread

    def stop(self) -> None:
        if self._pid == os.getpid():  # after a fork the lock may be held for ever, by a thread of the parent
            self._stopped.set()
        self._reset()

    def _probe_until_back(self, stopped: threading.Event) -> None:
        pause = FIRST_PROBE_SECONDS
        while self._circuit.away and not stopped.wait(pause):
            pause = next_pause(pause)
            for node, op in self._circuit.build_probes():
                if self._has_answered(op):
                    self._circuit.mark_back(node)
        if not stopped.is_set():
            with self._lock:
                self._thread = None

    def _has_answered(self, op: Lookup) -> bool:
        try:
            self._store.execute(op)
        except Exception as error:
            return proves_contact(error)
        return True
