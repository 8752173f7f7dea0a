"""Only VerificationError is ever raised. The long run: `python tools/fuzz.py webhooks --count 10000000` (S18)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tools import fuzz, fuzz_webhooks

from retrysafe.core.ops import Stats
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import VerificationError
from retrysafe.webhooks import Event, Receiver
from tests.webhooks.senders import NOW, SENDERS, Sender

EACH = pytest.mark.parametrize("sender", SENDERS.values(), ids=SENDERS)


@pytest.mark.parametrize("target", fuzz_webhooks.TARGETS)
def test_only_verification_errors_escape_and_only_signed_bytes_are_believed(target: str) -> None:
    accepted, refused = fuzz.fuzz(target, 4_000, seed=1)
    assert accepted > 100
    assert refused > 1_000


ANY = st.one_of(st.none(), st.integers(), st.text(max_size=20), st.binary(max_size=20))
VALUES = st.one_of(st.text(max_size=60), st.binary(max_size=60))


@EACH
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_the_headers_and_the_body_are(sender: Sender, data: Any) -> None:
    genuine, body = sender.send()
    names = st.sampled_from([*genuine, *(name.lower() for name in genuine)])
    lines = st.lists(st.tuples(names, st.one_of(VALUES, st.sampled_from(list(genuine.values())))), max_size=8)
    headers = data.draw(st.one_of(lines, st.dictionaries(names, VALUES), st.lists(ANY), ANY))
    sent = data.draw(st.one_of(st.just(body), st.binary(max_size=80), ANY))
    now = data.draw(st.floats())
    with suppress(VerificationError):
        sender.scheme.verify(headers, sent, now=now)


@pytest.mark.parametrize("name", SENDERS)
def test_nothing_unverified_ever_takes_a_place(name: str) -> None:
    """A delivery without a valid signature makes no record and no call to a handler (S21)."""
    sender = SENDERS[name]
    safe = RetrySafe("memory://")
    receiver = Receiver(safe, sender.scheme, clock=lambda: NOW)
    handled: list[Event] = []
    receiver.on()(handled.append)
    headers, body = sender.send("victim")
    for forged in (body.replace(b"paid", b"made"), body + b" ", b"{}"):
        assert receiver.receive(headers, forged).status == 400
    for header in headers:
        assert receiver.receive({**headers, header: "x" * 64}, body).status in (200, 400)
    stolen = len(
        handled
    )  # an id or topic outside the signature may differ: then the key differs too, and is never the victim's
    assert stolen == 0 if sender.signs_id else stolen == 2
    assert receiver.receive(headers, body).status == 200
    assert handled[-1].id == "victim", "its place was free"
    assert len(handled) == stolen + 1
    found = safe.execute(Stats())
    assert found.completed == stolen + 1
    assert found.claimed + found.released + found.uncertain == 0
    safe.close()
