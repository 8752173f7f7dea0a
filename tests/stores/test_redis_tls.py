"""TLS: a real server with its own certificate. The pipe takes over the TLS transport of redis-py."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.diagnosis import diagnose
from retrysafe.stores.redis import AsyncRedisStore, RedisStore
from retrysafe.testing.builders import claim, complete, lookup
from tests.opening import unique
from tests.servers.base import ServerUnavailable
from tests.servers.valkey import RedisServer
from tests.stepping import HOWS, How, leaking_turns

pytestmark = [pytest.mark.store("redis8"), pytest.mark.xdist_group("redis tls")]

LARGE = os.urandom(1 << 20)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate for the loopback address, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "retrysafe tests")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / "server.crt", folder / "server.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, secret


class TLSServer(RedisServer):
    """A Redis server that accepts TLS only."""

    def __init__(self, folder: Path) -> None:
        self.certificate, secret = make_certificate(folder)
        tls = {"tls-cert-file": str(self.certificate), "tls-key-file": str(secret), "tls-auth-clients": "no"}
        super().__init__(**tls)
        self.settings["tls-port"] = str(self.port)

    @property
    def url(self) -> str:
        return f"rediss://127.0.0.1:{self.port}/0?ssl_ca_certs={self.certificate}&prefix={unique()}:"

    def command(self, folder: Path) -> list[str]:
        command = super().command(folder)
        command[command.index("--port") + 1] = "0"
        return command

    def ping(self) -> None:
        with redis.Redis(
            port=self.port, host="127.0.0.1", ssl=True, ssl_ca_certs=str(self.certificate), socket_timeout=5
        ) as client:
            client.ping()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TLSServer]:
    own = TLSServer(tmp_path_factory.mktemp("tls"))
    try:
        own.start()
    except ServerUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    yield own
    own.stop()


def test_threads_over_tls(server: TLSServer) -> None:
    store = RedisStore.open(server.url)
    held = store.execute_many([claim(f"k{n}", now=None) for n in range(50)])
    assert store.execute_many([complete(each, LARGE, now=None) for each in held[:3]]) == [True] * 3
    found = store.execute(lookup(held[0], now=None)).record
    assert found is not None
    assert found.answer is not None
    assert found.answer.body == LARGE
    store.close()


async def test_one_connection_for_all_over_tls(server: TLSServer) -> None:
    """Many calls in one turn, and answers that are larger than any buffer."""
    store = AsyncRedisStore.open(server.url)
    assert store.capabilities.native_batching
    held = await asyncio.gather(*(store.execute(claim(f"k{n}", now=None)) for n in range(200)))
    assert all(each.granted for each in held)
    done = await asyncio.gather(*(store.execute(complete(each, LARGE, now=None)) for each in held[:5]))
    assert done == [True] * 5
    replays = await asyncio.gather(*(store.execute(claim(f"k{n}", now=None)) for n in range(5)))
    assert [reply.record.answer.body == LARGE for reply in replays] == [True] * 5
    await store.aclose()


async def test_a_cut_connection_is_unclear_and_replaced_over_tls(server: TLSServer) -> None:
    store = AsyncRedisStore.open(server.url)
    op = claim(now=None)
    assert (await store.execute(op)).granted
    with redis.Redis(port=server.port, ssl=True, ssl_ca_certs=str(server.certificate), host="127.0.0.1") as client:
        client.client_kill_filter(_type="normal", skipme=True)
    try:
        again = await store.execute(op)
    except StoreUnclear:  # depends on whether the loss is noticed before or after sending
        again = await store.execute(op)
    assert again.granted
    assert again.record is not None
    assert again.record.attempt == 1
    await store.aclose()


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "left"])
def test_a_server_that_does_not_say_goodbye_leaves_nothing_open(server: TLSServer, closed: bool) -> None:
    """A regular TLS shutdown waits for the server. An event loop that ends before would leave the socket open. That is
    a warning, and warnings are errors in the tests."""

    async def use() -> None:
        store = AsyncRedisStore.open(server.url)
        assert (await store.execute(claim(now=None))).granted
        server.pause()
        if closed:
            await store.aclose()

    try:
        asyncio.run(use())
    finally:
        server.unpause()
    gc.collect()


@pytest.mark.parametrize("how", HOWS)
def test_an_end_at_any_turn_leaves_no_connection_over_tls(server: TLSServer, how: How) -> None:
    """The end comes while the store resolves, connects, does the TLS handshake, logs in or sends."""
    assert leaking_turns(lambda: AsyncRedisStore.open(server.url), how) == []


async def test_a_certificate_nobody_vouches_for_is_refused(server: TLSServer) -> None:
    strange = f"rediss://127.0.0.1:{server.port}/0"
    store = RedisStore.open(strange)
    with pytest.raises(StoreUnavailable, match=r"(?i)certificate") as caught:
        store.execute(claim())
    assert not isinstance(caught.value, StoreUnclear)
    store.close()
    astore = AsyncRedisStore.open(strange)
    with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
        await astore.execute(claim())
    await astore.aclose()


def test_the_doctor_over_tls(server: TLSServer) -> None:
    found = diagnose(server.url)
    assert found.store.startswith("Redis 8")
    assert found.label == "exactly-once-capable"
