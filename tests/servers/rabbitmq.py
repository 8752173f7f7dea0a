"""RabbitMQ out of Debian packages, with a port mapper (epmd) of its own: nothing of the machine's is asked or used.

It is heavy (seven seconds to come up), so it is not among the servers of every run: the fixture `rabbitmq_url` of
brokers.py starts it when a test of its wants it, and those tests carry `pytest.mark.xdist_group("rabbitmq")`, so that
one worker process starts one.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.servers.base import POLL, START_DEADLINE, STOP_DEADLINE, Server, ServerUnavailable
from tests.servers.debian import Prefix, package
from tests.servers.ports import free_port

HELLO = b"AMQP\x00\x00\x09\x01"
VERSION = re.compile(rb"\x07versionS.{4}([0-9.]+)", re.DOTALL)

QUIET = "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
"""One scheduler that sleeps when it has nothing to do: the tests want the processor for themselves."""

LOCAL = "-kernel inet_dist_use_interface {127,0,0,1}"


class RabbitMQServer(Server):
    name = "rabbitmq"
    deadline = 240.0

    def __init__(self) -> None:
        super().__init__()
        self._between_nodes = free_port()
        self._mapper_port = free_port()
        self._mapper: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def version(self) -> str:
        found = VERSION.search(greeting(self.port))
        return f"RabbitMQ {found.group(1).decode() if found else '(of unknown version)'}"

    def ping(self) -> None:
        assert greeting(self.port), "it hung up without a word"

    def prepare(self, folder: Path) -> None:
        (folder / "log").touch()
        (folder / "plugins").write_text("[].\n")
        (folder / "settings.conf").write_text("disk_free_limit.absolute = 10MB\n")
        programs = folder / "bin"
        programs.mkdir()
        erlang = self._erlang()
        runtime = runtime_of(erlang)
        starter = f'ROOTDIR="{erlang}" BINDIR="{runtime}" EMU=beam PROGNAME=erl exec "{runtime}/erlexec" "$@"'
        # The package's own starter believes that it is installed; this one knows where it is.
        (programs / "erl").write_text(f"#!/bin/sh\n{starter}\n")
        (programs / "erl").chmod(0o755)

    def command(self, folder: Path) -> list[str]:
        found = sorted(self._package().usr.glob("lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"))
        if not found:
            raise ServerUnavailable("the package rabbitmq-server carries no server")
        settings = [f"{name}={value}" for name, value in self._environment(folder).items()]
        env = shutil.which("env")
        assert env is not None
        return [env, *settings, "sh", str(found[0])]

    def resume(self) -> None:
        self._start_mapper()
        super().resume()

    def stop(self) -> None:
        """An orderly end takes seconds, and what is thrown away may be killed."""
        self.kill()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait(STOP_DEADLINE)
            self._mapper = None
        super().stop()

    def _worth_another_try(self) -> bool:
        """A node that was killed is still in the mapper's list until the mapper has noticed."""
        return "already running" in self.log_tail() or super()._worth_another_try()

    def _environment(self, folder: Path) -> dict[str, Any]:
        return {
            "PATH": f"{folder / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "HOME": folder,
            "ERL_EPMD_PORT": self._mapper_port,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"retrysafe{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_DIST_PORT": self._between_nodes,
            "RABBITMQ_MNESIA_BASE": folder / "data",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": folder / "settings",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
            "RABBITMQ_PID_FILE": folder / "pid",
            "RUNNING_UNDER_SYSTEMD": 1,  # the script becomes the server instead of watching it
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{QUIET} {LOCAL}",
        }

    def _start_mapper(self) -> None:
        """epmd, where Erlang nodes look each other up. In the foreground, so that it ends when we say."""
        if self._mapper is not None and self._mapper.poll() is None:
            return
        program = runtime_of(self._erlang()) / "epmd"
        where = ["-address", "127.0.0.1", "-port", str(self._mapper_port)]
        self._mapper = subprocess.Popen(
            [str(program), *where],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_DEADLINE
        while not listening(self._mapper_port):
            if self._mapper.poll() is not None or time.monotonic() >= deadline:
                raise ServerUnavailable(f"epmd did not come up on port {self._mapper_port}")
            time.sleep(POLL)

    def _erlang(self) -> Path:
        return self._package().usr / "lib" / "erlang"

    @staticmethod
    def _package() -> Prefix:
        return package("bookworm", "rabbitmq-server")


def runtime_of(erlang: Path) -> Path:
    found = sorted(erlang.glob("erts-*/bin"))
    if not found:
        raise ServerUnavailable(f"{erlang} has no runtime: the package was not unpacked as a whole")
    return found[0]


def listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True


def greeting(port: int) -> bytes:
    """What a broker says to somebody who speaks AMQP 0-9-1. It opens its door when it is ready to serve."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.settimeout(5)
        connection.sendall(HELLO)
        return connection.recv(4096)
