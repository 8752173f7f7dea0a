"""The network of the demo: it carries requests from the browser to the shop, from the shop to the provider, and the
provider's webhooks to the shop.

A request of the page may ask for a fault with the header `X-Demo-Fault`:

    cut     the shop's answer to this request is lost on its way back, and the browser hears nothing
    kill    the shop is killed in the middle of this purchase's charge: the provider has charged the card, and its
            answer has not arrived
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any
from uuid import uuid4

import httpx
from fastapi import Request, Response
from fastapi.responses import JSONResponse

from retrysafe.demo.bus import EventBus
from retrysafe.demo.supervisor import Supervisor

CHARGE_SECONDS = 0.6
"""How long the provider takes for a charge at normal speed, as real ones do."""
LOST_SECONDS = 60.0
NOT_FORWARDED = frozenset({"host", "connection", "content-length", "transfer-encoding", "keep-alive", "date", "server"})


class DemoNetwork:
    def __init__(self, supervisor: Supervisor, bus: EventBus) -> None:
        self._supervisor = supervisor
        self._bus = bus
        self._http = httpx.AsyncClient(timeout=30.0, limits=httpx.Limits(max_keepalive_connections=0))
        self._to_kill: dict[str, str] = {}
        """Orders in the middle of whose charge the shop is to be killed, each with the request that asked for it."""
        self.speed = 1.0

    async def aclose(self) -> None:
        await self._http.aclose()

    async def carry_to_shop(self, request: Request) -> Response:
        name = request.headers.get("x-demo-request") or f"other-{uuid4().hex[:8]}"
        fault = request.headers.get("x-demo-fault", "")
        body = await request.body()
        order = read_order(body)
        if fault == "kill" and order:
            self._to_kill[order] = name
        self._bus.emit("sent", request=name, order=order)
        try:
            answer = await self._forward(request, self._supervisor.shop.address, request.url.path, body, name)
        except httpx.TransportError:
            self._bus.emit("broken", request=name, order=order)
            return JSONResponse({"error": "the server ended before it answered"}, 502)
        finally:
            if self._to_kill.get(order) == name:
                del self._to_kill[order]  # it was not charged again: a replay, or a refusal
        if fault == "cut":
            self._bus.emit("lost", request=name, order=order, status=answer.status_code)
            await wait_until_gone(request)
            return Response(status_code=504)
        replayed = answer.headers.get("idempotent-replayed") == "true"
        self._bus.emit("answered", request=name, order=order, status=answer.status_code, replayed=replayed)
        return to_response(answer)

    async def carry_webhook(self, request: Request) -> Response:
        """From the provider to the shop."""
        body = await request.body()
        try:
            answer = await self._forward(request, self._supervisor.shop.address, request.url.path, body)
        except httpx.TransportError:
            return JSONResponse({"error": "the server ended before it answered"}, 502)
        self._bus.emit("webhook", charge=read_charge(body), status=answer.status_code)
        return to_response(answer)

    async def carry_to_provider(self, request: Request, path: str) -> Response:
        body = await request.body()
        try:
            answer = await self._forward(request, self._supervisor.provider.address, path, body)
        except httpx.TransportError:
            return JSONResponse({"error": "the provider does not answer"}, 502)
        if request.method == "POST" and answer.is_success:
            if path == "/charges":
                await self._finish_charge(answer)
            elif path == "/receipts":
                self._bus.emit("receipt", charge=answer.json()["charge"])
            elif path == "/parcels":
                self._bus.emit("parcel", order=answer.json()["order"])
        return to_response(answer)

    async def _finish_charge(self, answer: httpx.Response) -> None:
        charge = answer.json()
        order, is_new = charge["order"], answer.status_code == 201
        seconds = CHARGE_SECONDS / self.speed
        takes = round(1000 * seconds)
        self._bus.emit("charged" if is_new else "recognised", order=order, charge=charge["id"], takes=takes)
        if order in self._to_kill:
            self._supervisor.kill_shop(order=order, request=self._to_kill.pop(order))
        await asyncio.sleep(seconds)
        self._bus.emit("charge_answered", order=order, charge=charge["id"])

    async def _forward(self, request: Request, address: str, path: str, body: bytes, name: str = "") -> httpx.Response:
        if not address:
            raise httpx.ConnectError("the process is not running")
        headers = [(key, value) for key, value in request.headers.items() if key not in NOT_FORWARDED]
        if name:
            headers = [*(pair for pair in headers if pair[0] != "x-demo-request"), ("x-demo-request", name)]
        query = f"?{request.url.query}" if request.url.query else ""
        return await self._http.request(request.method, address + path + query, headers=headers, content=body)


def read_order(body: bytes) -> str:
    """The order number in a payment. What is wrong with a body is for the shop to say."""
    return str(parse_object(body).get("order", ""))[:64]


def read_charge(body: bytes) -> str:
    """The charge that a webhook reports. Anybody can send one here, and the shop refuses what is not signed."""
    data = parse_object(body).get("data")
    return str(data.get("id", ""))[:64] if isinstance(data, dict) else ""


def parse_object(body: bytes) -> dict[str, Any]:
    try:
        fields: Any = json.loads(body)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def to_response(answer: httpx.Response) -> Response:
    response = Response(answer.content, answer.status_code)
    response.raw_headers = [
        (key.lower(), value)
        for key, value in answer.headers.raw
        if key.decode("latin-1").lower() not in NOT_FORWARDED | {"content-encoding"}
    ]
    response.raw_headers.append((b"content-length", str(len(answer.content)).encode()))
    return response


async def wait_until_gone(request: Request) -> None:
    """Say nothing until the browser has given up."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LOST_SECONDS):
            while (await request.receive())["type"] != "http.disconnect":
                pass
