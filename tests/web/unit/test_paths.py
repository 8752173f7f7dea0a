"""Paths: normalized for the fingerprint, and as names in records and logs."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.core.fingerprint import fingerprint_http
from retrysafe.core.records import Fingerprint
from retrysafe.web import asgi, wsgi
from retrysafe.web.fingerprints import fingerprint_request
from retrysafe.web.paths import MAX_TARGET_CHARS, build_target, normalize_path, normalize_raw_path, sanitize_target
from retrysafe.web.routes import Route
from retrysafe.web.view import RequestView, view_from_environ, view_from_scope
from tests.web.unit.harness import Counting, World, WsgiCall, call, scope_of, who

JSON = "application/json"
ROUTE = Route(policy=None)  # type: ignore[arg-type]  # only its fingerprint is asked for


# Spelling -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "normalised"),
    [
        (b"/a/b", "/a/b"),
        (b"/a%2fb", "/a%2Fb"),
        (b"/%7Euser/%41", "/~user/A"),
        (b"/caf%c3%a9", "/caf%C3%A9"),
        (b"/caf\xc3\xa9", "/caf%C3%A9"),
        (b"/caf%E9", "/caf%E9"),
        (b"/a%3Ab;c%40d", "/a:b;c@d"),
        (b"/a b\n\x00", "/a%20b%0A%00"),
        (b"/100%/%zz/%2", "/100%25/%25zz/%252"),
        (b"/a%252Fb", "/a%252Fb"),
    ],
)
def test_one_spelling_for_each_path(raw: bytes, normalised: str) -> None:
    assert normalize_raw_path(raw) == normalised
    assert normalize_raw_path(normalised.encode()) == normalised, "what is normal stays as it is"


@given(st.text())
def test_a_path_of_text_has_one_spelling_however_it_was_sent(text: str) -> None:
    text = "/" + text.encode("utf-8", "replace").decode()
    assert normalize_raw_path(quote(text).encode()) == normalize_path(text)
    assert unquote(normalize_path(text)) == text
    assert normalize_path(text).isascii()
    assert normalize_path(text).isprintable()


# Fingerprints ------------------------------------------------------------------------------------


def on_asgi(raw: bytes, content_type: str = JSON, **more: Any) -> RequestView:
    """A scope as uvicorn and Hypercorn make it."""
    headers = [(b"content-type", content_type.encode())]
    path = unquote(raw.decode("ascii"))
    return view_from_scope({**scope_of(path=path), "raw_path": raw, "headers": headers, **more})


def on_wsgi(raw: bytes, content_type: str = JSON, **more: Any) -> RequestView:
    """An environ as gunicorn makes it; `RAW_URI=None` is a server that passes only the decoded path."""
    from urllib.parse import unquote_to_bytes

    environ = {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(raw).decode("latin-1"),
        "QUERY_STRING": "",
        "CONTENT_TYPE": content_type,
        "RAW_URI": raw.decode("latin-1") + "?x=1",
        **more,
    }
    return view_from_environ({name: value for name, value in environ.items() if value is not None})


def prints(view: RequestView, body: bytes = b"{}") -> Fingerprint:
    return fingerprint_request(view, ROUTE, [body])


MADE = pytest.mark.parametrize("made", [on_asgi, on_wsgi])


@MADE
def test_an_encoded_slash_is_another_path(made: Any) -> None:
    plain, encoded = prints(made(b"/a/b")), prints(made(b"/a%2Fb"))
    assert plain != encoded
    assert encoded == prints(made(b"/a%2fb"))


@MADE
def test_bytes_that_are_no_text_are_told_apart(made: Any) -> None:
    one, two = prints(made(b"/caf%E9")), prints(made(b"/caf%E8"))
    assert one != two


def test_a_wsgi_server_that_tells_only_the_decoded_path_still_tells_bytes_apart() -> None:
    one, two = (prints(on_wsgi(raw, RAW_URI=None)) for raw in (b"/caf%E9", b"/caf%E8"))
    assert one != two
    assert one == prints(on_wsgi(b"/caf%E9"))


def test_a_wsgi_server_that_replaces_bytes_is_asked_for_the_address() -> None:
    """As Werkzeug's own server does."""
    one, two = (prints(on_wsgi(raw, PATH_INFO="/caf\xef\xbf\xbd")) for raw in (b"/caf%E9", b"/caf%E8"))
    assert one != two
    assert one == prints(on_wsgi(b"/caf%E9"))


@MADE
@pytest.mark.parametrize("raw", [b"/a/b", b"/caf%C3%A9", b"/a%3Ab", b"/%7Eme", b"/a%252Fb", b"/%EF%BF%BD", b"/a%00%0A"])
def test_where_the_old_rule_was_right_its_form_is_kept(made: Any, raw: bytes) -> None:
    """Two releases may use one store: where the first form is right, it is still written."""
    old = fingerprint_http("POST", unquote(raw.decode()), "", JSON, [b"{}"])
    assert prints(made(raw)) == old


def test_the_new_form_of_one_is_never_the_old_form_of_another() -> None:
    """`/a%252Fb` decodes to the text `/a%2Fb`."""
    assert prints(on_asgi(b"/a%2Fb")) != prints(on_asgi(b"/a%252Fb"))


def test_asgi_and_wsgi_agree() -> None:
    for raw in (b"/a/b", b"/a%2Fb", b"/caf%E9"):
        assert prints(on_asgi(raw)) == prints(on_wsgi(raw))


@pytest.mark.parametrize(
    "view",
    [
        on_asgi(b"/x%2Fy", path="/a/b"),
        on_asgi(b"/x", path="/a/b", raw_path=None),
        on_wsgi(b"/x%2Fy", PATH_INFO="/a/b"),
        on_wsgi(b"/a/b", RAW_URI="http://host/a/b?x"),
        on_wsgi(b"/a/b", RAW_URI="http://host"),
    ],
    ids=["rewritten", "not told", "rewritten environ", "absolute", "absolute without path"],
)
def test_a_raw_path_that_is_not_of_this_path_is_not_used(view: RequestView) -> None:
    assert prints(view) == fingerprint_http("POST", "/a/b", "", JSON, [b"{}"])


@pytest.mark.parametrize("uri", ["http://host/a%2Fb?x", "/a%2Fb#f", "/a%2Fb"])
def test_the_raw_address_in_any_form(uri: str) -> None:
    assert prints(on_wsgi(b"/a%2Fb", RAW_URI=None, REQUEST_URI=uri)) == prints(on_wsgi(b"/a%2Fb"))


def test_a_mount_is_part_of_the_path_and_servers_differ_about_the_raw_one() -> None:
    with_it = prints(on_asgi(b"/mount/a%2Fb", root_path="/mount"))
    without = prints(on_asgi(b"/a%2Fb", path="/mount/a/b", root_path="/mount"))
    assert with_it == without
    mounted = on_wsgi(b"/mount/a%2Fb", SCRIPT_NAME="/mount", PATH_INFO="/a/b")
    assert prints(mounted) == with_it


def test_a_fingerprint_of_the_routes_own_compares_the_exact_path_too() -> None:
    route = Route(policy=None, fingerprint=lambda view, body: b"same")  # type: ignore[arg-type]
    plain, encoded = (fingerprint_request(on_asgi(raw), route, [b""]) for raw in (b"/a/b", b"/a%2Fb"))
    assert plain != encoded


PARTS = b'--a\r\nContent-Disposition: form-data; name="n"\r\n\r\n1\r\n--a--\r\n'


def test_two_boundaries_are_hashed_as_they_came() -> None:
    """A framework may use the second boundary; its parts would be an epilogue by the first one."""
    twice = "multipart/form-data; boundary=a; boundary=b"
    cheap, dear = (PARTS + b"--b\r\n\r\n" + amount + b"\r\n--b--\r\n" for amount in (b"5", b"5000"))
    first, second = (prints(on_asgi(b"/pay", twice), body) for body in (cheap, dear))
    assert first != second
    swapped = prints(on_asgi(b"/pay", "multipart/form-data; boundary=b; boundary=a"), cheap)
    assert swapped != first


def hidden_part(amount: bytes, lead: bytes = b"") -> bytes:
    return lead + b'--a\nContent-Disposition: form-data; name="amount"\n\n' + amount + b"\n--a--\n"


@pytest.mark.parametrize(
    "around",
    [
        pytest.param((b"\n{}\r\n" + PARTS), id="a part after bare line feeds, before the first boundary"),
        pytest.param((b"x\n{}\r\n" + PARTS), id="the same after other text"),
        pytest.param((b"{}\r\n" + PARTS), id="text before the first boundary"),
        pytest.param((PARTS + b"{}"), id="text after the last boundary"),
        pytest.param(PARTS.replace(b"1", b"1\n{}"), id="a part after bare line feeds, within a part"),
    ],
)
def test_what_one_parser_skips_and_another_reads_is_compared(around: bytes) -> None:
    """Werkzeug takes a boundary after a bare line feed for one; Starlette refuses it."""
    one = "multipart/form-data; boundary=a"
    cheap, dear = (around.replace(b"{}", hidden_part(amount)) for amount in (b"5", b"5000"))
    assert prints(on_asgi(b"/pay", one), cheap) != prints(on_asgi(b"/pay", one), dear)
    assert prints(on_asgi(b"/pay", one), cheap) == prints(on_asgi(b"/pay", one), cheap)
    elsewhere = prints(on_asgi(b"/pay", "multipart/form-data; boundary=b"), cheap)
    assert elsewhere != prints(on_asgi(b"/pay", one), cheap), "the boundary says what is read"


def test_the_boundary_of_a_plain_multipart_body_still_does_not_count() -> None:
    one = prints(on_asgi(b"/pay", "multipart/form-data; boundary=a"), PARTS)
    assert prints(on_asgi(b"/pay", "multipart/form-data; boundary=zz"), PARTS.replace(b"--a", b"--zz")) == one
    assert prints(on_asgi(b"/pay", "multipart/form-data; boundary=a"), b"\r\n" + PARTS.rstrip()) == one


@pytest.mark.parametrize(
    "content_type", ["multipart/form-data; boundary=a", "application/json; boundary=a; boundary=b"]
)
def test_what_has_one_boundary_or_needs_none_is_as_before(content_type: str) -> None:
    old = fingerprint_http("POST", "/pay", "", content_type, [PARTS])
    assert prints(on_asgi(b"/pay", content_type), PARTS) == old
    nothing = fingerprint_http("POST", "/pay", "", content_type, [b""])
    assert prints(on_asgi(b"/pay", content_type), b"") == nothing, "the release before would see a mismatch (rule 17)"


# Through the middlewares -------------------------------------------------------------------------


async def test_one_key_for_two_paths_is_a_mismatch_on_asgi() -> None:
    app = Counting()
    middleware = asgi.IdempotencyMiddleware(app, safe=World().safe, scope=who)
    told = [await call(middleware, scope_of(path="/a/b", raw_path=raw)) for raw in (b"/a/b", b"/a%2Fb", b"/a/b")]
    assert [one.status for one in told] == [201, 422, 201]
    assert app.runs == 1


def plain_app(environ: Any, start_response: Any) -> list[bytes]:
    start_response("201 Created", [])
    return [b"made it"]


def test_one_key_for_two_paths_is_a_mismatch_on_wsgi() -> None:
    middleware = wsgi.IdempotencyMiddleware(plain_app, safe=World().safe, scope=who)
    addresses = ("/a/b", "/a%2Fb", "/a%2fb")
    told = [WsgiCall(middleware, PATH_INFO="/a/b", REQUEST_URI=address) for address in addresses]
    assert [one.status for one in told] == [201, 422, 422]
    other = [WsgiCall(middleware, key="k2", PATH_INFO=path) for path in ("/caf\xe9", "/caf\xe8")]
    assert [one.status for one in other] == [201, 422]


# Names in records and logs -----------------------------------------------------------------------

FORGED = "/pay\nERROR forged: all is well\x00\u2028\u202e"


async def test_a_target_is_one_line_of_printable_text(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    around = asgi.IdempotencyMiddleware(Counting(), safe=world.safe, scope=who)
    assert (await call(around, scope_of(path=FORGED))).status == 201
    plain = wsgi.IdempotencyMiddleware(plain_app, safe=world.safe, scope=who)
    assert WsgiCall(plain, key="k2", PATH_INFO=FORGED.encode().decode("latin-1")).status == 201
    assert {record.target for record in world.records} == {
        "POST /pay%0AERROR%20forged:%20all%20is%20well%00%E2%80%A8%E2%80%AE"
    }


def test_a_warning_about_a_path_stays_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """The key is never claimed: the log names the path."""
    middleware = wsgi.IdempotencyMiddleware(plain_app, safe=World().safe)
    with caplog.at_level(logging.WARNING, "retrysafe.web"):
        WsgiCall(middleware, PATH_INFO=FORGED.encode().decode("latin-1"))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "/pay%0AERROR" in line
    assert line.isprintable()


@pytest.mark.parametrize("length", [40, 1_000])
def test_a_target_is_bounded_and_never_ends_within_an_escape(length: int) -> None:
    for shift in range(4):
        target = build_target("POST", "/" + "x" * shift + "é" * length)
        assert len(target) <= MAX_TARGET_CHARS
        assert "%" not in target[-2:]
        assert len(target) > min(MAX_TARGET_CHARS - 3, length * 6)


def test_a_target_that_an_adapter_names_is_made_safe_as_well() -> None:
    assert sanitize_target("POST /orders/{id}") == "POST /orders/{id}"
    assert sanitize_target("POST /größe/<id>") == "POST /größe/<id>", "a developer's own text"
    assert sanitize_target("POST /a\nb\x00\u2028\ud800") == "POST /a%0Ab%00%E2%80%A8%ED%A0%80"
    assert len(sanitize_target("x" * 5_000)) == MAX_TARGET_CHARS


async def test_a_claim_with_a_target_of_the_clients_text_is_named_safely() -> None:
    world = World()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await scope["retrysafe.exchange"].claim("alice", target=f"POST {FORGED}")
        await Counting()(scope, receive, send)

    assert (await call(asgi.IdempotencyMiddleware(app, safe=world.safe), scope_of())).status == 201
    assert world.records[0].target.isprintable()


def test_a_view_is_shown_in_one_line() -> None:
    assert repr(on_asgi(b"/a%0Ab")) == "RequestView(POST /a%0Ab)"
