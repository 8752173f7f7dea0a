"""Ready-made publishers: they deliver a staged job to another system. Each sends the job's id, so that the receiver can
recognise a second delivery.

    safe.publish("order.paid")(HttpPublisher("https://example.com/hooks"))
    safe.publish("*")(RedisStreamPublisher(redis_client, "events"))
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from retrysafe.core.jobs import Job
from retrysafe.errors import UsageError
from retrysafe.worker.deadline import Deadline, DeadlineSocket, run_within

Resolve = Callable[[str, int], Iterable[str]]
"""Resolves a host and a port to addresses."""


class DeliveryFailed(Exception):
    """The receiver did not accept the job. It is tried again later."""


class HttpPublisher:
    """POST the payload to a URL. 2xx means delivered; everything else is tried again.

    The host is resolved once per delivery, and the connection goes to the address that was checked. An address that is
    not public is refused (S29), also if a name is made to point at one later (DNS rebinding). Redirects are not
    followed. `allow_private=True` is for services of your own, on a network of your own. `timeout` covers the whole
    delivery, from the DNS lookup to the last byte of the answer, so a slow server cannot hold up the worker.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
        allow_private: bool = False,
        resolve: Resolve | None = None,
    ) -> None:
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise UsageError(f"HttpPublisher(timeout={timeout!r}): give seconds, more than zero")
        at = urlsplit(url)
        if at.scheme not in ("http", "https") or not at.hostname or at.username is not None:
            raise UsageError(f"HttpPublisher({url!r}): give an http:// or https:// URL without credentials")
        self._https = at.scheme == "https"
        self._host = at.hostname
        self._port = at.port or (443 if self._https else 80)
        self._netloc = at.netloc
        self._path = (at.path or "/") + (f"?{at.query}" if at.query else "")
        self._headers = dict(headers or {})
        self._timeout = timeout
        self._allow_private = allow_private
        self._resolve = resolve or resolve_host

    def __call__(self, job: Job) -> None:
        headers = {
            "content-type": "application/json",
            **self._headers,
            "idempotency-key": f'"{job.id}"',
            "webhook-id": job.id,
            "x-retrysafe-topic": job.topic,
            "host": self._netloc,
        }
        deadline = Deadline(self._timeout)
        connection = self._connect(self._resolve_address(deadline), deadline)
        try:
            connection.request("POST", self._path, job.payload, headers)
            answer = connection.getresponse()
            answer.read(65_536)
        except (OSError, http.client.HTTPException) as error:
            raise DeliveryFailed(f"POST to {self._host} failed: {error}") from error
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            redirected = "; redirects are not followed" if 300 <= answer.status < 400 else ""
            raise DeliveryFailed(f"POST to {self._host} was answered with {answer.status}{redirected}")

    def _resolve_address(self, deadline: Deadline) -> str:
        try:
            found = run_within(deadline, lambda: list(self._resolve(self._host, self._port)))
        except OSError as error:
            raise DeliveryFailed(f"{self._host} cannot be found: {error}") from error
        allowed = [each for each in found if self._allow_private or is_public_address(each)]
        if len(allowed) != len(found) or not allowed:
            refused = ", ".join(each for each in found if each not in allowed) or "nothing"
            raise DeliveryFailed(
                f"{self._host} points at {refused}, which is not a public address; "
                "if it is a service of your own, say HttpPublisher(url, allow_private=True)"
            )
        return allowed[0]

    def _connect(self, address: str, deadline: Deadline) -> http.client.HTTPConnection:
        """A connection to the address that was checked. The certificate is still checked against the host name."""
        connection = http.client.HTTPConnection(self._host, self._port)
        try:
            sock = socket.create_connection((address, self._port), deadline.remaining())
            connection.sock = DeadlineSocket(self._wrap_tls(sock, deadline) if self._https else sock, deadline)
        except OSError as error:
            raise DeliveryFailed(f"{self._host} ({address}) cannot be reached: {error}") from error
        return connection

    def _wrap_tls(self, sock: socket.socket, deadline: Deadline) -> ssl.SSLSocket:
        try:
            sock.settimeout(deadline.remaining())  # the timeout covers the whole handshake
            return ssl.create_default_context().wrap_socket(sock, server_hostname=self._host)
        except BaseException:
            sock.close()
            raise


def resolve_host(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def is_public_address(address: str) -> bool:
    """True if an address is on the public internet. An IPv6 address that wraps an IPv4 address is judged by the IPv4
    one."""
    at = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(at, ipaddress.IPv6Address):
        inner = at.ipv4_mapped or at.sixtofour or (at.teredo[1] if at.teredo else None)
        if inner is not None:
            return is_public_address(str(inner))
    return at.is_global and not at.is_multicast


class RedisStreamClient(Protocol):
    """The part of a redis-py client that is used."""

    def xadd(self, name: Any, fields: Any, **options: Any) -> Any: ...


class RedisStreamPublisher:
    """XADD the job to a stream, with its id as the field `id`. Works with a sync or an async redis-py client."""

    def __init__(self, client: RedisStreamClient, stream: str, *, maxlen: int | None = None) -> None:
        if not stream:
            raise UsageError("RedisStreamPublisher(client, ''): name the stream")
        self._client = client
        self._stream = stream
        self._maxlen = maxlen

    def __call__(self, job: Job) -> Any:
        fields = {"id": job.id, "topic": job.topic, "payload": job.payload, "order": job.order}
        options = {"maxlen": self._maxlen, "approximate": True} if self._maxlen is not None else {}
        return self._client.xadd(self._stream, fields, **options)
