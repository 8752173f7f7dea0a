"""The demo behind one port: the page, its events, and the network that carries everything else to the shop."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.middleware.trustedhost import TrustedHostMiddleware

from retrysafe.demo.bus import EventBus
from retrysafe.demo.child import HOST
from retrysafe.demo.key_view import describe_record, make_console
from retrysafe.demo.network import DemoNetwork
from retrysafe.demo.supervisor import Supervisor
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError

NAMESPACE = "demo"
STATIC_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".html": "text/html"}
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
PROXIED_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class Speed(BaseModel):
    speed: float = Field(ge=0.1, le=20)


class Front:
    """Everything that the page talks to."""

    def __init__(self, folder: Path, store: str, port: int) -> None:
        self.bus = EventBus()
        self.supervisor = Supervisor(folder, store, f"http://{HOST}:{port}", self.bus)
        self.network = DemoNetwork(self.supervisor, self.bus)
        self.safe = RetrySafe(store, namespace=NAMESPACE)

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        await self.supervisor.start()
        try:
            yield
        finally:
            await self.supervisor.stop()
            await self.network.aclose()
            await self.safe.aclose()


def make_front(front: Front) -> FastAPI:
    app = FastAPI(lifespan=front.lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])

    app.mount("/console", make_console(front.safe).asgi)

    @app.get("/")
    async def page() -> Response:
        return read_static("page.html")

    @app.get("/demo/static/{name}")
    async def static(name: str) -> Response:
        return read_static(name)

    @app.get("/demo/shop.py")
    async def shop_source() -> Response:
        source = files("retrysafe.demo").joinpath("shop.py").read_bytes()
        return Response(source, media_type="text/plain", headers=SECURITY_HEADERS)

    @app.get("/demo/events")
    async def events(last_event_id: Annotated[int | None, Header()] = None) -> Response:
        return StreamingResponse(
            front.bus.stream(last_event_id), headers=SECURITY_HEADERS, media_type="text/event-stream"
        )

    @app.get("/demo/status")
    async def status() -> dict[str, Any]:
        store = front.safe.async_store.capabilities.name
        return {"store": store, "shop": front.supervisor.shop.pid, "provider": front.supervisor.provider.pid}

    @app.put("/demo/speed")
    async def set_speed(wanted: Speed) -> Speed:
        front.network.speed = wanted.speed
        return wanted

    @app.get("/demo/records/{record_id}")
    async def record(record_id: str) -> dict[str, Any]:
        found = await describe_record(front.safe, parse_id(record_id))
        if found is None:
            raise HTTPException(404, "no such record")
        return {**found, "console": f"/console/keys/{record_id}"}

    @app.api_route("/provider/{path:path}", methods=["GET", "POST"])
    async def provider(request: Request, path: str) -> Response:
        return await front.network.carry_to_provider(request, f"/{path}")

    @app.post("/webhooks/provider")
    async def webhook(request: Request) -> Response:
        return await front.network.carry_webhook(request)

    @app.api_route("/{path:path}", methods=PROXIED_METHODS)
    async def shop(request: Request, path: str) -> Response:
        return await front.network.carry_to_shop(request)

    return app


def parse_id(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise HTTPException(422, f"{text!r} is not the id of a record: give it in hex") from error


def read_static(name: str) -> Response:
    found = files("retrysafe.demo").joinpath("static", name)
    media_type = STATIC_TYPES.get(Path(name).suffix)
    if media_type is None or not found.is_file():
        raise HTTPException(404, "no such file")
    return Response(found.read_bytes(), media_type=media_type, headers=SECURITY_HEADERS)


class FrontServer(uvicorn.Server):
    """Prints the address when everything runs, and ends the event streams before it waits for open answers."""

    def __init__(self, config: uvicorn.Config, front: Front, ready: str) -> None:
        super().__init__(config)
        self._front = front
        self._ready = ready

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(self._ready, flush=True)

    async def shutdown(self, sockets: Any = None) -> None:
        self._front.bus.close()
        await super().shutdown(sockets)


def bind_port(port: int) -> socket.socket:
    """The socket of the demo, before anything is started. It takes connections once the server listens on it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise UsageError(f"--port {port}: {error.strerror or error}; give another port") from error
    return listener


def serve(folder: Path, store: str, listener: socket.socket) -> int:
    port = listener.getsockname()[1]
    front = Front(folder, store, port)
    ready = f"the demo is at http://{HOST}:{port}  (its data is in {folder}/; Ctrl-C stops it)"
    server = FrontServer(uvicorn.Config(make_front(front), host=HOST, port=port, log_level="warning"), front, ready)
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    return 0 if server.started else 1
