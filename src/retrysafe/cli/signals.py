"""Signals that stop a command: SIGINT (Ctrl-C), SIGTERM and SIGHUP. A command that only looks stops at once. One that
changes records holds them: it stops between two records, and its audit row is ended. A second signal stops it at once.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class CommandInterrupted(KeyboardInterrupt):
    """A signal stopped the command."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        return 128 + self.number


class SignalGate:
    """Lets signals through as CommandInterrupted, or holds the first one while records are changed."""

    def __init__(self) -> None:
        self.received = 0
        """The last signal; 0 if there was none."""
        self._held = False

    def receive(self, number: int, frame: FrameType | None = None) -> None:
        first = not self.received
        self.received = number
        if not (self._held and first):
            raise CommandInterrupted(number)

    @contextmanager
    def hold(self) -> Iterator[None]:
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before

    def check(self) -> None:
        """Between two records: raise CommandInterrupted if a signal is held."""
        if self.received:
            raise CommandInterrupted(self.received)

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Receive the signals that nobody else handles. Not in a thread: only the main thread gets signals."""
        self.received, self._held = 0, False
        before: dict[int, Any] = {}
        try:
            for number in STOPPING:
                if signal.getsignal(number) in DEFAULTS:
                    before[number] = signal.signal(number, self.receive)
        except ValueError:  # not the main thread
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


gate = SignalGate()
"""The gate of this program."""
