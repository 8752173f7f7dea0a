"""S28: what is secret in a store's URL is shown nowhere, however the URL is broken."""

from __future__ import annotations

import pytest

from retrysafe import RetrySafe
from retrysafe.core.urls import redact_secrets, safe_url
from retrysafe.errors import RetrySafeError
from retrysafe.stores.registry import backends, open_store, sibling_schemes

SECRETS = [
    "postgresql://user:a://hunter2@host/db",
    "postgresql://user:hunter2://b@host/db",
    "redis://:hunter2://@host:6379/0",
    "dynamodb://key:hunter2@eu-west-1/keys",
    "dynamodb://eu-west-1/keys?session_token=hunter2",
    "dynamodb://eu-west-1/keys?aws_session_token=a@hunter2",
    "dynamodb://localhost:8000/keys?aws_secret_access_key=hunter2",
    "mongodb://host/db?authMechanismProperties=AWS_SESSION_TOKEN:hunter2",
    "mongodb://host/db?tlsCertificateKeyFilePassword=hunter2",
    "postgresql://host/db?p%61ssword=hunter2",
    "redis+sentinel://host/0?master=m&sentinel_password=hunter2",
    "host=db user=u password=hunter2 port=5432",
    "host=db password='a hunter2' port=5432",
    "host=db password = hunter2 port=5432",
    "host=db password =hunter2 port=5432",
    "host=db PASSWORD= 'a hunter2' port=5432",
    r"host=db password='a\'b hunter2' port=5432",
    r"host=db password = 'a\\ hunter2' port=5432",
    "Server=db;Pwd=hunter2;Database=shop",
    "cannot reach http://user:hunter2@host, see https://docs",
]


@pytest.mark.parametrize("url", SECRETS)
def test_a_secret_is_not_shown(url: str) -> None:
    assert "hunter2" not in safe_url(url)
    assert "***" in safe_url(url)


@pytest.mark.parametrize(
    "url", ["postgresql://user@host/db?sslmode=require&application_name=a+b", "dynamodb://eu-west-1/keys?skew=1", "a b"]
)
def test_the_rest_is_shown_as_it_is(url: str) -> None:
    assert safe_url(url) == url


def test_words_of_others_about_a_url_are_shown_without_its_secrets() -> None:
    """urlsplit takes `hunter2` for a port here, and says so."""
    url = "mysql://user:hunter2/b@host/db"
    text = "Port could not be cast to integer value as 'hunter2'"
    assert redact_secrets(text, url) == "Port could not be cast to integer value as '***'"
    assert redact_secrets("no such option", "sqlite:///app.db") == "no such option"
    assert "p#d" not in redact_secrets("bad: p#d", "redis://:p%23d@h")


BROKEN = [
    "{}://user:hunter2@host",
    "{}://user:hunter2/x@host/db",
    "{}://user:x/hunter2@host/db",
    "{}://user:x#hunter2@host:port/db",
    "{}://user:x://hunter2@host/db?nonsense=1",
    "{}://host/db?session_token=hunter2",
    "{}://host:port/db?password=hunter2&nonsense=1",
]
ALL = sorted({name for scheme in backends() for name in sibling_schemes(scheme)} - {"memory"} | {"nobody"})


@pytest.mark.parametrize("scheme", ALL)
@pytest.mark.parametrize("broken", BROKEN)
def test_no_store_says_a_secret_when_it_refuses_its_url(scheme: str, broken: str) -> None:
    """Nothing connects here; what a store takes is closed unused. Another error than ours fails the test by itself."""
    url, text = broken.format(scheme), ""
    try:
        open_store(url).close()
        text = repr(RetrySafe(url))
    except RetrySafeError as error:
        text = str(error)
    assert text
    assert "hunter2" not in text
