"""The ASGI middleware in the situations that cost us something: one kind of purchase for each."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from retrysafe.policy import Policy
from retrysafe.testing.simulation import AppHost, ClientReply, Handler, Purchase, Scenario
from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.web.endpoint_entry import REDIRECTED, REFUSED
from retrysafe.web.exchange import EXCHANGE
from tests.simulation.scenarios.base import Response, answer, report, send_request, start_actor, to_reply

KINDS = ("plain", "lower", "redirected", "corrected", "moved", "large", "cookie", "tenant")
"""`lower` sends `post` in small letters; `redirected` follows a router's redirect; `corrected` sends an invalid body
first; `moved` has a handler that charges and then redirects; `large` an answer that is too large to keep; `cookie` sets
a cookie; `tenant`: all purchases have one key, each under an account of its own."""


def deploy(node: AppHost) -> Handler:
    provider = node.provider

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        kind, _, name = scope["path"].strip("/").partition("/")
        sent = json.loads((await receive())["body"])
        exchange = scope[EXCHANGE]
        if kind == "old":  # the router's own redirect: no handler was entered
            exchange.endpoint_entry = REDIRECTED
            return await answer(send, 307, b"", (b"location", f"/redirected/{name}".encode()))
        if kind == "corrected" and sent.get("broken"):  # the framework's own validation
            exchange.endpoint_entry = REFUSED
            return await answer(send, 422, b'{"invalid": true}')
        headers = dict(scope["headers"])
        number = await provider.charge(headers[b"account"].decode() if kind == "tenant" else name)
        if kind == "moved":  # a handler that redirects has charged
            return await answer(send, 303, b'{"charge": %d}' % number, (b"location", b"/thanks"))
        body = json.dumps({"charge": number, "more": "x" * (400 if kind == "large" else 0)}).encode()
        extra = [(b"set-cookie", b"session=1")] if kind == "cookie" else []
        return await answer(send, 201, body, *extra)

    policy = Policy(retention=200_000, max_answer=200, invalid="withdraw")
    app = IdempotencyMiddleware(endpoint, safe=node.safe, scope=lambda view: view.headers["account"], policy=policy)
    if node.host.name.startswith("app"):
        start_actor(intrude(node, app))

    async def handle(purchase: Purchase) -> ClientReply:
        provider.history.note(provider.now, node.host.name, "receives", purchase.name, kind=purchase.kind)
        response = await send_purchase(app, purchase)
        if purchase.kind == "redirected" and response.status == 422:
            # Final only if the key stays bound to the old address: an earlier attempt there may have entered an
            # endpoint (a person was asked, and said that it did not happen), so its withdrawal is only a release.
            heard, unheard = (provider.history.find(what, purchase.name) for what in ("resolved", "resolved unheard"))
            bound = any(not event.data["happened"] for event in (*heard, *unheard))
            return ClientReply(422, b"bound") if bound else ClientReply(503, b"")
        if purchase.kind == "large" and response.status in (201, 410):  # replayed or not: it was done
            return ClientReply(410, b"done")
        if purchase.kind == "cookie" and "idempotent-replayed" in response.headers and "set-cookie" in response.headers:
            report(node, "S9 no cookies in replays", f"{purchase.name} got the cookie of the first client")
        return to_reply(response)

    return handle


async def send_purchase(app: Any, purchase: Purchase) -> Response:
    name, key = purchase.name, purchase.key
    if purchase.kind == "redirected":
        first = response = await send_request(app, f"/old/{name}", key)
        if first.status in (307, 422):  # 422: another sender has followed the redirect already
            response = await send_request(app, f"/redirected/{name}", key)
        return Response(503, b"", {}) if response.status == 422 and first.status != 307 else response
    if purchase.kind == "corrected":
        response = await send_request(app, f"/corrected/{name}", key, body=b'{"broken": true}')
        again = response.status == 422 and b"invalid" in response.body
        # Another sender of the same purchase may have got the key in between, with either body.
        if again or b"mismatch" in response.body:
            response = await send_request(app, f"/corrected/{name}", key)
        return Response(503, b"", {}) if response.status == 422 else response
    if purchase.kind == "tenant":
        return await send_request(app, "/tenant", "one-key-for-all", account=name)
    method = "post" if purchase.kind == "lower" else "POST"
    return await send_request(app, f"/{purchase.kind}/{name}", key, method=method)


async def intrude(node: AppHost, app: Any) -> None:
    """Somebody sends the keys of others with other requests: with another body, path or method."""
    while True:
        await asyncio.sleep(random.uniform(0.5, 3.0))
        name = f"p{random.randrange(1, 4)}"
        variant = random.choice(("body", "path"))
        path = f"/plain/{name}" if variant == "body" else f"/plain%2F{name}"
        sent = b'{"intruder": true}' if variant == "body" else b"{}"
        if not is_plain_and_begun(node, name):
            continue
        try:
            response = await send_request(app, path, f"key-{name}", body=sent)
        except (ConnectionError, TimeoutError) as error:  # of the endpoint: it was run for the intruder
            report(node, "I8 mismatch", f"another {variant} with the key of {name} was run, and met {error!r}")
            continue
        if response.status < 300 or b'"charge"' in response.body:
            report(node, "I8 mismatch", f"another {variant} with the key of {name} was answered {response.status}")
        elif response.status in (409, 500) and b"outcome-unrecorded" not in response.body:
            report(node, "I9 mismatch first", f"another {variant} with the key of {name} was told {response.status}")
        if node.provider.now > 120.0:
            return


def is_plain_and_begun(node: AppHost, name: str) -> bool:
    """Whether a purchase of the kind `plain` has begun: its key is used."""
    events = [event for event in node.provider.history.events if event.about == name]
    plain = any(event.what == "receives" and event.data["kind"] == "plain" for event in events)
    return plain and any(event.what == "sends" for event in events)


WEB = Scenario(deploy, KINDS)
