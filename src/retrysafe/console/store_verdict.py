"""The verdict of the doctor on the store, asked at most once a minute: every visit shows it, and asking connects."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from retrysafe.errors import RetrySafeError
from retrysafe.operators.store_doctor import diagnose_store
from retrysafe.stores.diagnosis import Diagnosis

KEPT_SECONDS = 60.0


class StoreVerdict:
    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url, self._clock = url, clock
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        self._found: Diagnosis | None = None
        self.error = ""
        """Why there is no verdict."""

    def read(self, *, anew: bool = False) -> Diagnosis | None:
        """The diagnosis; None if the store has no doctor, or was not given as a URL."""
        with self._lock:
            if anew or self._asked_at is None or self._clock() - self._asked_at > KEPT_SECONDS:
                self._asked_at = self._clock()
                self._ask()
            return self._found

    def _ask(self) -> None:
        self._found, self.error = None, ""
        if not self._url:
            self.error = "the store was not given as a URL, so its settings cannot be asked for"
            return
        try:
            self._found = diagnose_store(self._url)
        except RetrySafeError as error:
            self.error = str(error)
