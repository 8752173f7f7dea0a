"""What every test server has in common: a folder, a log, a process, a deadline."""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.servers.ports import free_port

START_DEADLINE = 180.0
STOP_DEADLINE = 15.0
POLL = 0.02
LOG_LINES = 20


class ServerUnavailable(Exception):
    """The server could not be had; the message carries what it wrote last."""


class Server(ABC):
    """One server process. Subclasses say how it is called and when it is ready."""

    name: str
    deadline = START_DEADLINE
    """Seconds to come up in, on a machine that has other things to do."""

    def __init__(self) -> None:
        self.port = free_port()
        self.folder: Path | None = None
        self.process: subprocess.Popen[bytes] | None = None

    # What differs ---------------------------------------------------------------------------------

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def version(self) -> str:
        """What the running server says it is."""

    @abstractmethod
    def prepare(self, folder: Path) -> None:
        """Make the data folder, once."""

    @abstractmethod
    def command(self, folder: Path) -> list[str]: ...

    @abstractmethod
    def ping(self) -> None:
        """Raise unless the server answers."""

    def as_user(self) -> dict[str, Any]:
        """Popen arguments that name the user to run as; empty for ourselves."""
        return {}

    # What is the same -----------------------------------------------------------------------------

    def start(self) -> Server:
        """Start on a fresh folder and wait until it answers."""
        atexit.register(self.stop)
        self.folder = Path(tempfile.mkdtemp(prefix=f"retrysafe-{self.name}-"))
        self.folder.chmod(0o755)  # a server that dropped to another user must be able to walk in
        try:
            self.prepare(self.folder)
            self.resume()
        except (OSError, subprocess.SubprocessError, ServerUnavailable) as error:
            tail = self.log_tail()
            self.stop()
            raise ServerUnavailable(f"{self.name} could not be started: {error}\n{tail}".rstrip()) from error
        return self

    def resume(self) -> None:
        """Start on the folder and port it has. What a killed server left may still be dying, so it tries again."""
        deadline = time.monotonic() + self.deadline
        while True:
            self._spawn()
            try:
                return self._await_ready(deadline)
            except ServerUnavailable:
                self._reap_process()
                if time.monotonic() >= deadline or not self._worth_another_try():
                    raise

    def kill(self) -> None:
        """The server dies on the spot, as in a power cut that spares the disk's cache. So do its children: a backend of
        PostgreSQL that is not killed answers until it notices that its parent is gone."""
        if self.process is not None:
            self._signal(signal.SIGSTOP)  # no child is born meanwhile
            children = list_children(self.process.pid)
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap_process()
            deadline = time.monotonic() + STOP_DEADLINE
            while any(is_running(pid) for pid in children) and time.monotonic() < deadline:
                time.sleep(POLL)

    def restart(self) -> None:
        """Die and come back: same port, same data."""
        self.kill()
        self.resume()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def unpause(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop and leave nothing behind. May be called any number of times."""
        atexit.unregister(self.stop)
        if self.process is not None:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGINT)
            try:
                self.process.wait(STOP_DEADLINE)
            except subprocess.TimeoutExpired:
                self.process.kill()
            self._reap_process()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    def log_tail(self) -> str:
        if self.folder is None or not (self.folder / "log").exists():
            return ""
        lines = (self.folder / "log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])

    def _spawn(self) -> None:
        assert self.folder is not None
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C at the terminal is for pytest, which then stops us
                **self.as_user(),
            )

    def _await_ready(self, deadline: float) -> None:
        assert self.process is not None
        while True:
            try:
                return self.ping()
            except Exception as error:
                if self.process.poll() is not None:
                    raise ServerUnavailable(f"it ended with code {self.process.returncode}") from error
                if time.monotonic() >= deadline:
                    raise ServerUnavailable(f"no answer within {self.deadline:.0f} s: {error}") from error
            time.sleep(POLL)

    def _worth_another_try(self) -> bool:
        """A port or memory that the dead one has not given back yet."""
        return any(words in self.log_tail() for words in ("still in use", "already in use"))

    def _reap_process(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()
            self.process = None

    def _signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


def list_children(pid: int) -> list[int]:
    """The processes that this one started."""
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it has not ended. One that nobody has waited for yet has."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] != "Z"
    return False


def nobody() -> dict[str, Any]:
    """Popen arguments that drop root, which some servers refuse to run as."""
    if os.getuid() != 0:
        return {}
    user = pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def give_away(folder: Path) -> None:
    """Make the folder nobody's, if we are root."""
    to = nobody()
    if to:
        os.chown(folder, to["user"], to["group"])
