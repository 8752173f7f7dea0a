"""Each scheme against its provider's own library, in both directions, or against the provider's published example."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
import standardwebhooks
import stripe
import svix
from slack_sdk.signature import Clock, SignatureVerifier

from retrysafe.errors import VerificationError
from retrysafe.webhooks import GitHub, Shopify, Slack, StandardWebhooks, Stripe, Svix
from tests.webhooks.senders import OLD_SECRET, PUBLIC_KEY, SECRET, SIGNING_KEY

BODY = b'{"id": "evt_1", "type": "invoice.paid", "object": "event", "text": "na\xc3\xafve \\u2603"}'


def tampered(body: bytes) -> bytes:
    return body.replace(b"paid", b"pale")


# Standard Webhooks and Svix -----------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs"), [(StandardWebhooks, standardwebhooks.Webhook), (Svix, svix.Webhook)])
def test_standard_webhooks_and_svix_agree_with_their_libraries(ours: Any, theirs: Any) -> None:
    now = time.time()
    sent = ours(SECRET).sign(BODY, id="msg_1", now=now)
    theirs(SECRET).verify(BODY, sent)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        theirs(SECRET).verify(tampered(BODY), sent)

    moment = datetime.fromtimestamp(int(now), UTC)
    signature = theirs(SECRET).sign("msg_2", moment, BODY.decode())
    prefix = ours.prefixes[0]
    headers = {f"{prefix}-id": "msg_2", f"{prefix}-timestamp": str(int(now)), f"{prefix}-signature": signature}
    found = ours(SECRET).verify(headers, BODY, now=now)
    assert (found.id, found.key, found.type, found.timestamp) == ("msg_2", "msg_2", "invoice.paid", int(now))
    with pytest.raises(VerificationError):
        ours(SECRET).verify(headers, tampered(BODY), now=now)
    with pytest.raises(VerificationError):
        ours(OLD_SECRET).verify(headers, BODY, now=now)


@pytest.mark.parametrize(("ours", "theirs"), [(StandardWebhooks, standardwebhooks.Webhook), (Svix, svix.Webhook)])
@pytest.mark.parametrize("size", [24, 31, 32])
def test_a_secret_without_its_padding_is_taken_as_their_libraries_take_it(ours: Any, theirs: Any, size: int) -> None:
    now, padded = time.time(), "whsec_" + base64.b64encode(bytes(range(size))).decode()
    for shown in (padded, padded.rstrip("="), padded + "\n"):
        sent = ours(shown).sign(BODY, id="msg_1", now=now)
        theirs(padded.rstrip("=") if theirs is standardwebhooks.Webhook else padded).verify(BODY, sent)
        assert ours(padded).verify(sent, BODY, now=now).id == "msg_1"


def test_the_example_of_the_standard_webhooks_specification_in_ed25519() -> None:
    """The vector of the Svix server, which the specification shows."""
    signature = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
    id_, at, body = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}'
    assert StandardWebhooks(SIGNING_KEY).sign(body, id=id_, now=at)["webhook-signature"] == signature
    headers = {"webhook-id": id_, "webhook-timestamp": str(at), "webhook-signature": f"v1,AAAA {signature}"}
    assert StandardWebhooks(PUBLIC_KEY).verify(headers, body, now=at).id == id_
    with pytest.raises(VerificationError):
        StandardWebhooks(PUBLIC_KEY).verify(headers, body.replace(b"4", b"5"), now=at)
    with pytest.raises(VerificationError):
        StandardWebhooks(SECRET).verify(headers, body, now=at)


def test_svix_senders_that_have_moved_to_the_standard_headers_are_understood() -> None:
    headers = StandardWebhooks(SECRET).sign(BODY, id="msg_1", now=1_000)
    assert Svix(SECRET).verify(headers, BODY, now=1_000).id == "msg_1"
    mixed = {"svix-id": "msg_9", **headers}
    with pytest.raises(VerificationError):
        Svix(SECRET).verify(mixed, BODY, now=1_000)


# Stripe -------------------------------------------------------------------------------------------


def test_stripe_agrees_with_its_library() -> None:
    now = int(time.time())
    ours = Stripe("whsec_new", "whsec_old").sign(BODY, id="", now=now)["Stripe-Signature"]
    for secret in ("whsec_new", "whsec_old"):
        assert stripe.Webhook.construct_event(BODY, ours, secret).id == "evt_1"  # type: ignore[no-untyped-call]
    code = stripe.WebhookSignature._compute_signature(f"{now}.{BODY.decode()}", "whsec_new")
    headers = {"stripe-signature": f"t={now},v1={code},v0=6ffbb59b"}
    found = Stripe("whsec_new").verify(headers, BODY, now=now)
    assert (found.id, found.key, found.type) == ("evt_1", "evt_1", "invoice.paid")
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.Webhook.construct_event(tampered(BODY), ours, "whsec_new")  # type: ignore[no-untyped-call]
    with pytest.raises(VerificationError):
        Stripe("whsec_new").verify(headers, tampered(BODY), now=now)


# GitHub -------------------------------------------------------------------------------------------


def test_the_example_of_githubs_documentation() -> None:
    headers = {
        "X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
        "X-GitHub-Event": "push",
        "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
    }
    scheme = GitHub("It's a Secret to Everybody")
    found = scheme.verify(headers, b"Hello, World!", now=0)
    assert (found.id, found.type) == ("72d3162e-cc78-11e3-81ab-4c9367dc0958", "push")
    assert scheme.sign(b"Hello, World!", id="x", type="push")["X-Hub-Signature-256"] == headers["X-Hub-Signature-256"]
    with pytest.raises(VerificationError):
        scheme.verify(headers, b"Hello, World?", now=0)


# Shopify ------------------------------------------------------------------------------------------


def test_shopify_as_its_documentation_says() -> None:
    """ShopifyAPI verifies only redirects. The rule for webhooks is one line of the documentation, implemented here."""
    code = base64.b64encode(hmac.new(b"hush", BODY, hashlib.sha256).digest()).decode()
    headers = {
        "X-Shopify-Topic": "orders/create",
        "X-Shopify-Hmac-Sha256": code,
        "X-Shopify-Shop-Domain": "johns-apparel.myshopify.com",
        "X-Shopify-Webhook-Id": "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
        "X-Shopify-Event-Id": "98880550-7158-44d4-b7cd-2c97c8a091b5",
    }
    found = Shopify("hush").verify(headers, BODY, now=0)
    assert (found.id, found.type) == ("b54557e4-bdd9-4b37-8a5f-bf7d70bcd043", "orders/create")
    by_event = Shopify("hush", identity="event").verify(headers, BODY, now=0)
    assert by_event.id == "98880550-7158-44d4-b7cd-2c97c8a091b5"
    with pytest.raises(VerificationError):
        Shopify("hush").verify(headers, tampered(BODY), now=0)


# Slack --------------------------------------------------------------------------------------------

SLACK_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
SLACK_AT = 1_531_420_618
SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
    b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com"
    b"%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)


class Stopped(Clock):
    def now(self) -> float:
        return SLACK_AT


def test_the_example_of_slacks_documentation() -> None:
    headers = {
        "X-Slack-Request-Timestamp": str(SLACK_AT),
        "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    found = Slack(SLACK_SECRET).verify(headers, SLACK_BODY, now=SLACK_AT)
    assert found.id == "398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    assert found.type == "/webhook-collect"


def test_slack_agrees_with_its_library() -> None:
    theirs = SignatureVerifier(SLACK_SECRET, Stopped())
    body = json.dumps({"type": "event_callback", "event_id": "Ev1", "event": {"type": "app_mention"}}).encode()
    ours = Slack(SLACK_SECRET).sign(body, id="", now=SLACK_AT)
    assert theirs.is_valid_request(body, ours)
    assert not theirs.is_valid_request(body + b" ", ours)
    signature = theirs.generate_signature(timestamp=str(SLACK_AT), body=body)
    headers = {"X-Slack-Request-Timestamp": str(SLACK_AT), "X-Slack-Signature": str(signature)}
    found = Slack(SLACK_SECRET).verify(headers, body, now=SLACK_AT)
    assert (found.id, found.type) == ("Ev1", "app_mention")
    with pytest.raises(VerificationError):
        Slack(SLACK_SECRET).verify(headers, body + b" ", now=SLACK_AT)
