"""The receiver in FastAPI, Starlette and Flask."""

from __future__ import annotations

from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retrysafe.webhooks.asgi import endpoint as asgi_endpoint
from retrysafe.webhooks.fastapi import endpoint as fastapi_endpoint
from retrysafe.webhooks.flask import endpoint as flask_endpoint
from retrysafe.webhooks.starlette import endpoint as starlette_endpoint
from tests.webhooks.apps.hooks import stripe

fastapi = FastAPI()
fastapi.post("/hook")(fastapi_endpoint(stripe))


@fastapi.get("/health")
def healthy() -> dict[str, bool]:
    return {"ok": True}


async def health(request: Request) -> Response:
    return Response()


starlette = Starlette(
    routes=[
        Route("/hook", starlette_endpoint(stripe), methods=["POST"]),
        Route("/bare", asgi_endpoint(stripe)),
        Route("/health", health),
    ]
)

flask = Flask(__name__)
flask.post("/hook")(flask_endpoint(stripe))
flask.get("/health")(lambda: "")
