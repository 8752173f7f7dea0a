"""What is refused, and how: S18, S19, S20, and the bugs of other libraries, each as a test."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retrysafe.errors import UsageError, VerificationError
from retrysafe.webhooks import Custom, GitHub, Scheme, Shopify, Slack, StandardWebhooks, Stripe, Svix
from retrysafe.webhooks.schemes import parts
from retrysafe.webhooks.schemes.parts import MAX_SIGNATURES
from tests.unit.test_package import fresh
from tests.webhooks.senders import NOW, OLD_SECRET, PUBLIC_KEY, SECRET, SENDERS, SIGNING_KEY, TIMED, Sender

EACH = pytest.mark.parametrize("sender", SENDERS.values(), ids=SENDERS)
EACH_TIMED = pytest.mark.parametrize("sender", [SENDERS[name] for name in TIMED], ids=TIMED)


def refused(scheme: Scheme, headers: Any, body: Any, now: float = NOW) -> str:
    """The reason of the refusal."""
    with pytest.raises(VerificationError) as caught:
        scheme.verify(headers, body, now=now)
    assert "check the signing secret" in str(caught.value)
    return caught.value.why


# Signatures ---------------------------------------------------------------------------------------


@EACH
def test_a_genuine_delivery_is_believed_and_a_changed_byte_is_not(sender: Sender) -> None:
    headers, body = sender.send("evt-7", "order.paid")
    found = sender.scheme.verify(headers, body, now=NOW)
    assert (found.id, found.type) == ("evt-7", "order.paid")
    for at in range(0, len(body), 7):
        assert "no signature" in refused(sender.scheme, headers, body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])


@EACH
def test_header_names_have_no_case_and_may_be_bytes(sender: Sender) -> None:
    """webhookkit looks headers up by case, so it refused everything from ASGI servers, which give lower-case names."""
    headers, body = sender.send()
    lower = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    upper = {name.upper(): value for name, value in headers.items()}
    for spelling in (lower, upper):
        assert sender.scheme.verify(spelling, body, now=NOW) == sender.scheme.verify(headers, body, now=NOW)


@EACH
def test_a_header_that_is_missing_or_came_twice_is_refused(sender: Sender) -> None:
    headers, body = sender.send()
    for name in headers:
        rest = {other: value for other, value in headers.items() if other != name}
        assert f"no {name}".lower() in refused(sender.scheme, rest, body).lower()
        twice = [*headers.items(), (name.upper(), headers[name])]
        assert "came 2 times" in refused(sender.scheme, twice, body)


@EACH
def test_the_body_is_taken_as_raw_bytes_only(sender: Sender) -> None:
    headers, body = sender.send()
    for other in (body.decode(), bytearray(body), memoryview(body), json.loads(body), None):
        assert "raw bytes" in refused(sender.scheme, headers, other)


@EACH
def test_a_body_above_the_limit_is_refused_before_it_is_hashed(sender: Sender) -> None:
    headers, _ = sender.send()
    assert "bytes; at most" in refused(sender.scheme, headers, bytes(sender.scheme.max_body + 1))


ROTATED: list[tuple[type[Scheme], str, str]] = [
    (StandardWebhooks, SECRET, OLD_SECRET),
    (Svix, SECRET, OLD_SECRET),
    (Stripe, "whsec_new", "whsec_old"),
    (GitHub, "new", "old"),
    (Shopify, "new", "old"),
    (Slack, "new", "old"),
]


@pytest.mark.parametrize(("kind", "new", "old"), ROTATED, ids=[kind.__name__ for kind, _, _ in ROTATED])
def test_while_secrets_are_rotated_both_are_good_and_a_third_is_not(kind: type[Scheme], new: str, old: str) -> None:
    both = kind(new, old)
    for secret in (new, old):
        headers, body = Sender(kind(secret)).send()
        assert both.verify(headers, body, now=NOW).id == "evt-1"
    headers, body = Sender(kind(old)).send()
    refused(kind(new), headers, body)


def test_stripe_tries_every_signature_and_not_only_the_last() -> None:
    """webhookkit 0.2.0 keeps only the last v1."""
    headers, body = Sender(Stripe("whsec_new", "whsec_old")).send()
    assert headers["Stripe-Signature"].count("v1=") == 2
    for secret in ("whsec_new", "whsec_old"):
        assert Stripe(secret).verify(headers, body, now=NOW).id == "evt-1"


def test_a_malformed_signature_in_the_list_does_not_hide_a_good_one() -> None:
    """standardwebhooks 1.1.0 raises ValueError for an item without a comma, before it reaches the valid one."""
    headers, body = SENDERS["standard"].send()
    good = headers["webhook-signature"]
    for noise in ("v1", "v1,", ",", "v1,a,b", "v1,%%%%", "v2," + "A" * 44, "v1a,AAAA", "", "v1,AAAA"):
        for mixed in (f"{noise} {good}", f"{good} {noise}"):
            assert (
                SENDERS["standard"].scheme.verify(headers | {"webhook-signature": mixed}, body, now=NOW).id == "evt-1"
            )
        refused(SENDERS["standard"].scheme, headers | {"webhook-signature": noise}, body)


def test_a_body_that_is_not_text_is_verified_like_any_other() -> None:
    """standardwebhooks 1.1.0 raises UnicodeDecodeError for it."""
    body = b"\xff\xfe\x00 binary"
    for name in ("standard", "standard-ed25519", "github", "shopify", "slack"):
        scheme = SENDERS[name].scheme
        headers = scheme.sign(body, id="evt-1", type="order.paid", now=NOW)
        assert scheme.verify(headers, body, now=NOW).key
        refused(scheme, headers, body + b"!")


def test_base64_has_one_spelling() -> None:
    headers, body = Sender(Shopify("s")).send()
    good = headers["X-Shopify-Hmac-SHA256"]
    stray = good[:-2] + chr(ord(good[-2]) + 1) + "="  # a decoder that is not strict gives the same bytes
    for other in (
        good.rstrip("="),
        good + "=",
        good + "\n",
        good[:10] + " " + good[10:],
        stray,
        good.replace("=", "%3D"),
    ):
        if other != good + "\n":
            refused(Shopify("s"), headers | {"X-Shopify-Hmac-SHA256": other}, body)
    assert "printable" in refused(Shopify("s"), headers | {"X-Shopify-Hmac-SHA256": good[:10] + "\n" + good[10:]}, body)


def test_hex_is_lower_case_without_blanks() -> None:
    headers, body = Sender(GitHub("s")).send()
    code = headers["X-Hub-Signature-256"].removeprefix("sha256=")
    for other in (
        code.upper(),
        code[:8] + " " + code[8:],
        code,
        "SHA256=" + code,
        "sha1=" + code,
        "sha256=" + code[:-2],
    ):
        if other != "sha256=" + code:
            refused(GitHub("s"), headers | {"X-Hub-Signature-256": other}, body)


def test_an_hmac_secret_is_never_tried_as_a_public_key_nor_the_reverse() -> None:
    both = StandardWebhooks(SECRET, PUBLIC_KEY)
    headers, body = Sender(StandardWebhooks(SIGNING_KEY)).send()
    assert both.verify(headers, body, now=NOW).id == "evt-1"
    relabelled = headers["webhook-signature"].replace("v1a,", "v1,")
    refused(both, headers | {"webhook-signature": relabelled}, body)


def test_s20_very_many_signatures_are_refused_before_the_first_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []

    def compared(*codes: Any) -> bool:
        tried.append(codes)
        return False

    monkeypatch.setattr(parts.hmac, "compare_digest", compared)
    headers, body = SENDERS["standard"].send()
    many = " ".join(["v1," + "A" * 44] * (MAX_SIGNATURES + 1))
    assert f"{MAX_SIGNATURES + 1} signatures" in refused(
        SENDERS["standard"].scheme, headers | {"webhook-signature": many}, body
    )
    for name, header in (("standard", "webhook-signature"), ("stripe", "Stripe-Signature")):
        headers, body = SENDERS[name].send()
        assert "characters; at most" in refused(SENDERS[name].scheme, headers | {header: "v1=aa," * 100_000}, body)
    assert tried == []
    headers, body = SENDERS["standard"].send()
    refused(SENDERS["standard"].scheme, headers | {"webhook-signature": "v1," + "A" * 44}, body)
    assert tried, "a single one is tried: so the others could have been"


# Times --------------------------------------------------------------------------------------------


@EACH_TIMED
@pytest.mark.parametrize("way", [-1, 1], ids=["past", "future"])
def test_s19_a_time_counts_up_to_the_tolerance_both_ways(sender: Sender, way: int) -> None:
    """Stripe's own library accepts any time in the future."""
    headers, body = sender.send(now=NOW)
    assert sender.scheme.verify(headers, body, now=NOW + way * 300).timestamp == NOW
    assert "s from our clock" in refused(sender.scheme, headers, body, now=NOW + way * 301)
    assert "s from our clock" in refused(sender.scheme, headers, body, now=float("nan"))


@EACH_TIMED
@pytest.mark.parametrize(
    "text",
    ["1700000000.0", "1.7e9", "+1700000000", "-1700000000", "1_700_000_000", "0x6553f100", "", "now", "9" * 13, "1 7",
     "17000000００", "١٧٠٠٠٠٠٠٠٠", "1700000000;"],
)  # fmt: skip
def test_s19_a_time_is_ascii_digits_only_even_when_it_is_signed(sender: Sender, text: str) -> None:
    """The reference library accepts floats, exponents and Arabic digits."""
    headers, body = sender.send(now=NOW)
    written = {name: value.replace(str(int(NOW)), text) for name, value in headers.items()}
    assert written != headers
    why = refused(sender.scheme, written, body)
    assert "timestamp" in why or "printable ASCII" in why or "times (t=)" in why


def test_stripe_has_exactly_one_time() -> None:
    headers, body = SENDERS["stripe"].send()
    line = headers["Stripe-Signature"]
    assert "2 times" in refused(SENDERS["stripe"].scheme, {"Stripe-Signature": f"t=1,{line}"}, body)
    assert "0 times" in refused(SENDERS["stripe"].scheme, {"Stripe-Signature": line.partition(",")[2]}, body)


# Ids ----------------------------------------------------------------------------------------------


def test_an_id_with_a_full_stop_could_be_read_in_two_ways_and_is_refused() -> None:
    scheme = StandardWebhooks(SECRET)
    body = b"1700000000.{}"
    headers = scheme.sign(body, id="a", now=NOW)
    assert scheme.verify(headers, body, now=NOW).id == "a"
    shifted = headers | {"webhook-id": f"a.{int(NOW)}"}
    assert "full stop" in refused(scheme, shifted, b"{}"), "the same signed bytes, cut elsewhere"


@pytest.mark.parametrize("id_", ["", "x" * 256, "a b", "naïve", "a\0b", 7, None, ["a"], {"a": 1}])
def test_a_signed_body_without_a_usable_id_is_refused(id_: object) -> None:
    body = json.dumps({"id": id_, "type": "t"}).encode()
    for name in ("stripe", "custom"):
        scheme = SENDERS[name].scheme
        assert "id" in refused(scheme, scheme.sign(body, id="", now=NOW), body)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b'{"a":' * 50_000, b'{"id":' + b"9" * 9999]
)
def test_a_signed_body_that_is_no_object_is_refused_where_the_id_is_in_it(body: bytes) -> None:
    for name in ("stripe", "custom"):
        scheme = SENDERS[name].scheme
        assert "is no id" in refused(scheme, scheme.sign(body, id="", now=NOW), body)


@pytest.mark.parametrize("name", ["github", "shopify"])
def test_an_unsigned_id_counts_only_together_with_the_signed_body(name: str) -> None:
    """An attacker who has one signed body cannot use it to take the place of another event."""
    sender = SENDERS[name]
    first = sender.scheme.verify(*sender.send("evt-1", n=1), now=NOW)
    again = sender.scheme.verify(*sender.send("evt-1", n=1), now=NOW + 10**6)
    occupied = sender.scheme.verify(*sender.send("evt-1", n=2), now=NOW)
    assert first.key == again.key
    assert occupied.id == first.id
    assert occupied.key != first.key


def test_by_body_nobody_can_have_one_handled_twice() -> None:
    for scheme in (GitHub("s", identity="body"), Shopify("s", identity="body")):
        headers, body = Sender(scheme).send("evt-1")
        name = next(name for name, value in headers.items() if value == "evt-1")
        found = scheme.verify(headers, body, now=NOW)
        assert scheme.verify(headers | {name: "evt-2"}, body, now=NOW).key == found.key
        other = {each: value.replace("order.paid", "order.made") for each, value in headers.items()}
        assert scheme.verify(other, body, now=NOW).key != found.key, "another topic with the same body is another event"


def test_slack_asks_whether_we_are_there() -> None:
    body = json.dumps({"type": "url_verification", "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"})
    scheme = SENDERS["slack"].scheme
    found = scheme.verify(scheme.sign(body.encode(), id="", now=NOW), body.encode(), now=NOW)
    assert found.challenge == b"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"
    refused(scheme, {}, body.encode())


def test_slack_interactions_have_their_trigger_and_what_has_nothing_its_digest() -> None:
    scheme = SENDERS["slack"].scheme
    for body, type_ in (
        (b"payload=%7B%22type%22%3A%22block_actions%22%2C%22trigger_id%22%3A%2213.37%22%7D", "block_actions"),
        (b'{"type": "app_rate_limited"}', "app_rate_limited"),
        (b"text=1", ""),
    ):
        found = scheme.verify(scheme.sign(body, id="", now=NOW), body, now=NOW)
        assert found.type == type_
        assert found.id == "13.37" if type_ == "block_actions" else len(found.id) == 64


# Setting up ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Stripe, "needs the signing secret"),
        (lambda: Stripe(""), "not empty"),
        (lambda: Stripe("  "), "not empty"),
        (lambda: GitHub(None), "not empty"),
        (lambda: Stripe("s", tolerance=0), "tolerance=0"),
        (lambda: Stripe("s", tolerance=float("inf")), "tolerance=inf"),
        (lambda: StandardWebhooks("whsec_%%%"), "base64"),
        (lambda: StandardWebhooks("whsec_AAAA"), "3 bytes"),
        (lambda: StandardWebhooks("whpk_AAAA"), "3 bytes"),
        (lambda: StandardWebhooks("whsk_AAAA"), "3 bytes"),
        (lambda: GitHub("s", identity="header"), "identity='header'"),
        (lambda: Shopify("s", identity="shop"), "identity='shop'"),
        (lambda: Custom("A b", "s", signature="X"), "'A b'"),
        (lambda: Custom("a", "s", signature="X"), "id_header"),
        (lambda: Custom("a", "s", signature="X", id_field="id", encoding="url"), "encoding='url'"),
        (lambda: Custom("a", "s", signature="X", id_field="id", algorithm="rot13"), "algorithm='rot13'"),
        (lambda: Custom("a", "s", signature="X", id_field="id", content="{id}"), "{body} once"),
        (lambda: Custom("a", "s", signature="X", id_field="id", content="{body}.x"), "must end with {body}"),
        (lambda: Custom("a", "s", signature="X", id_field="id", timestamp="T"), "an unsigned time proves nothing"),
        (lambda: Custom("a", "s", signature="X", id_field="id", content="{id}{body}"), "id_header="),
    ],
)
def test_a_scheme_that_cannot_work_says_so_at_once(make: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert says in str(caught.value)


@EACH
def test_secrets_are_never_shown(sender: Sender) -> None:
    shown = repr(sender.scheme)
    for secret in (SECRET, OLD_SECRET, SIGNING_KEY, "whsec_new", "client secret", "8f742231", "It's a Secret"):
        assert secret not in shown
    headers, body = sender.send()
    name = next(each.lower() for each in headers if each.lower() in sender.scheme.signature_headers)
    broken = {each: ("x" if each.lower() == name else value) for each, value in headers.items()}
    why = refused(sender.scheme, broken, body)
    assert not any(value in why for each, value in headers.items() if each.lower() == name)


def test_ed25519_without_cryptography_names_the_extra_and_hmac_needs_nothing() -> None:
    code = f"""
from retrysafe.errors import MissingDriver
from retrysafe.webhooks import StandardWebhooks, Stripe
StandardWebhooks({SECRET!r}); Stripe("s")
try:
    StandardWebhooks({PUBLIC_KEY!r})
except MissingDriver as error:
    print(error)
"""
    assert "pip install 'retrysafe[webhooks]'" in fresh(code, "cryptography")


def test_verifying_loads_nothing_of_anybody_else() -> None:
    code = """
import sys
before = set(sys.modules)
import retrysafe.webhooks
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - set(sys.stdlib_module_names)))
"""
    assert set(fresh(code).split()) <= {"retrysafe", "retrysafe_speedups"}, "our own packages only"
