"""An HTTP client for Stripe's SDK that retries with the transports of `retrysafe.client.httpx`.

    stripe.StripeClient("sk_…", http_client=RetryHTTPClient(journal="stripe.db"))

The SDK makes a random key for each POST. Outside of an operation, all retries of the call use that key. Inside
`with operation("order-7"):` the operation's own key replaces it, which also survives a restart. A key that you pass
yourself (`idempotency_key=`) is kept, unless it looks like a key of the SDK, a UUID.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import httpx
import stripe

from retrysafe.client.budget import Budget
from retrysafe.client.flow import build_client_state
from retrysafe.client.httpx import AsyncRetryTransport, RetryTransport
from retrysafe.client.journal import Journal
from retrysafe.client.operation import is_inside_operation
from retrysafe.client.settings import Clock, Retries

SDK_KEY_PATTERN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""A key of the SDK: 16 random bytes in the form of a UUID. Its version bits are not always set."""

HEADER = "Idempotency-Key"


class RetryHTTPClient(stripe.HTTPClient):
    """`timeout`: seconds for each attempt; 80, the SDK's own default. For the others see `RetryTransport`."""

    name: ClassVar[str] = "retrysafe"

    def __init__(
        self,
        *,
        retries: Retries | None = None,
        journal: Journal | str | Path | None = None,
        budget: Budget | None = None,
        ambient: Clock | None = None,
        timeout: float = 80.0,
        transport: httpx.BaseTransport | None = None,
        async_transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__()
        self._state = state = build_client_state(retries, journal, budget, ambient)
        parts: dict[str, Any] = {
            "retries": state.retries,
            "journal": state.journal,
            "budget": state.budget,
            "ambient": state.ambient,
        }
        self._client = httpx.Client(transport=RetryTransport(transport, **parts), timeout=timeout)
        self._async = httpx.AsyncClient(transport=AsyncRetryTransport(async_transport, **parts), timeout=timeout)

    # The SDK's own retry loop gets 0 retries: it would continue after our deadline and budget have ended a call.

    def request_with_retries(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None, *_: Any, **more: Any
    ) -> tuple[Any, int, Mapping[str, str]]:
        return super().request_with_retries(method, url, headers, post_data, 0, **keep_usage(more))

    def request_stream_with_retries(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None, *_: Any, **more: Any
    ) -> tuple[Any, int, Mapping[str, str]]:
        return super().request_stream_with_retries(method, url, headers, post_data, 0, **keep_usage(more))

    async def request_with_retries_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None, *_: Any, **more: Any
    ) -> tuple[Any, int, Any]:
        return await super().request_with_retries_async(method, url, headers, post_data, 0, **keep_usage(more))

    async def request_stream_with_retries_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None, *_: Any, **more: Any
    ) -> tuple[AsyncIterable[bytes], int, Any]:
        return await super().request_stream_with_retries_async(method, url, headers, post_data, 0, **keep_usage(more))

    # One call ---------------------------------------------------------------------------------------

    def request(
        self, method: str, url: str, headers: Mapping[str, str] | None, post_data: Any = None, **_: Any
    ) -> tuple[Any, int, Mapping[str, str]]:
        try:
            response = self._client.send(build_request(self._client, method, url, headers, post_data))
        except httpx.HTTPError as error:
            raise connection_error(error) from error
        return response.content, response.status_code, response.headers

    def request_stream(
        self, method: str, url: str, headers: Mapping[str, str] | None, post_data: Any = None, **_: Any
    ) -> tuple[Iterable[bytes], int, Mapping[str, str]]:
        try:
            response = self._client.send(build_request(self._client, method, url, headers, post_data), stream=True)
        except httpx.HTTPError as error:
            raise connection_error(error) from error
        return response.iter_bytes(), response.status_code, response.headers

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None, **_: Any
    ) -> tuple[bytes, int, Mapping[str, str]]:
        try:
            response = await self._async.send(build_request(self._async, method, url, headers, post_data))
        except httpx.HTTPError as error:
            raise connection_error(error) from error
        return response.content, response.status_code, response.headers

    async def request_stream_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None, **_: Any
    ) -> tuple[AsyncIterable[bytes], int, Mapping[str, str]]:
        try:
            response = await self._async.send(build_request(self._async, method, url, headers, post_data), stream=True)
        except httpx.HTTPError as error:
            raise connection_error(error) from error
        return response.aiter_bytes(), response.status_code, response.headers

    def close(self) -> None:
        self._client.close()
        self._state.close()

    async def close_async(self) -> None:
        await self._async.aclose()
        self._state.close()


def keep_usage(more: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the `_usage` argument of the SDK's telemetry. Older versions do not pass it."""
    return {name: value for name, value in more.items() if name == "_usage"}


def build_request(
    client: httpx.Client | httpx.AsyncClient, method: str, url: str, headers: Mapping[str, str] | None, data: Any
) -> httpx.Request:
    kept = {
        name: value
        for name, value in (headers or {}).items()
        if not (name.lower() == HEADER.lower() and is_inside_operation() and SDK_KEY_PATTERN.fullmatch(value))
    }
    return client.build_request(method.upper(), url, headers=kept, content=data or None)


def connection_error(error: httpx.HTTPError) -> stripe.APIConnectionError:
    """The SDK's own error, with the note that names the key. `should_retry=False`: it was retried already."""
    notes = "\n".join(getattr(error, "__notes__", ()))
    make: Any = stripe.APIConnectionError  # untyped in the SDK
    made: stripe.APIConnectionError = make(f"{type(error).__name__}: {error}\n{notes}", should_retry=False)
    return made
