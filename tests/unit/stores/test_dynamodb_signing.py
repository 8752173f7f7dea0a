"""Our signer and the SDK's: the same signature for every request, and the SDK's for what is unusual."""

from __future__ import annotations

import datetime
import random
import time
from typing import Any

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import NoCredentialsError

from retrysafe.stores.dynamodb.signing import SIGNATURE_VERSION, LeanSigV4Auth, _choose_signer

MOMENT = datetime.datetime(2026, 11, 17, 23, 59, 59, tzinfo=datetime.UTC)
ENDPOINTS = (
    "https://dynamodb.eu-west-1.amazonaws.com/",
    "https://dynamodb.eu-west-1.amazonaws.com",
    "http://127.0.0.1:8000/",
    "http://localhost:80/",
    "https://localhost:8443",
    "http://[::1]:8000/",
    "https://gateway.example/tables/",
)


@pytest.fixture(autouse=True)
def moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both signers are asked at the same second."""
    monkeypatch.setattr(auth, "get_current_datetime", lambda *_, **__: MOMENT)
    monkeypatch.setattr(time, "gmtime", lambda *_: MOMENT.timetuple())


def build_request(chance: random.Random, url: str) -> AWSRequest:
    headers = {
        "X-Amz-Target": "DynamoDB_20120810.PutItem",
        "Content-Type": "application/x-amz-json-1.0",
        "User-Agent": "whoever",
        "amz-sdk-invocation-id": f"{chance.random()}",
        "X-Spaced": "  two   words ",
    }
    chosen = {name: value for name, value in headers.items() if chance.random() < 0.8}
    return AWSRequest("POST", url, chosen, chance.randbytes(chance.randrange(300)))


def sign(kind: Any, request: AWSRequest, token: str | None) -> dict[str, str]:
    kind(Credentials("AKID", "secret", token), "dynamodb", "eu-west-1").add_auth(request)
    return dict(request.headers)


@pytest.mark.parametrize("url", ENDPOINTS)
@pytest.mark.parametrize("token", [None, "session-token"])
def test_the_signature_is_the_sdks(url: str, token: str | None) -> None:
    for seed in range(20):
        ours, theirs = (build_request(random.Random(seed), url) for _ in range(2))
        assert sign(LeanSigV4Auth, ours, token) == sign(auth.SigV4Auth, theirs, token)
        assert sign(LeanSigV4Auth, ours, token) == sign(auth.SigV4Auth, theirs, token), "of the next attempt"


@pytest.mark.parametrize(
    "unusual",
    [
        AWSRequest("POST", ENDPOINTS[0], {"Date": "yesterday"}, b"{}"),
        AWSRequest("POST", ENDPOINTS[0], {"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}, b"{}"),
        AWSRequest("POST", ENDPOINTS[0], {}, "text"),
        AWSRequest("GET", ENDPOINTS[0] + "?a=b", {}, b""),
    ],
    ids=["date", "checksum", "text", "query"],
)
def test_what_is_unusual_is_left_to_the_sdk(unusual: AWSRequest) -> None:
    copy = AWSRequest(unusual.method, unusual.url, dict(unusual.headers), unusual.data)
    assert sign(LeanSigV4Auth, unusual, None) == sign(auth.SigV4Auth, copy, None)


def test_without_credentials() -> None:
    with pytest.raises(NoCredentialsError):
        LeanSigV4Auth(None, "dynamodb", "eu-west-1").add_auth(AWSRequest("POST", ENDPOINTS[0], {}, b"{}"))


def test_only_version_4_is_replaced() -> None:
    assert _choose_signer("v4") == SIGNATURE_VERSION
    assert _choose_signer("v4a") is None
    assert _choose_signer(object()) is None
