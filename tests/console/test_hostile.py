"""1,000 hostile strings as key, scope, target, note, header, body, topic, error and reason never become markup: a page
with them has the same elements and attributes as a page with harmless ones. tests/browser/test_console.py shows the
same in a real browser, where nothing is asked for and nothing runs."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.console.request_log import LogFile, SeenRequest
from retrysafe.core.keys import record_id
from retrysafe.core.ops import Claim, Complete, List, Release, Suspect
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.builders import claim
from tests.console.conftest import stage_dead_letter
from tests.console.hostile import make_hostile
from tests.console.visitors import Markup, Visitor, make_console

HOSTILE = make_hostile(1_000)
TAME = "harmless text"


def build(text: str, number: int) -> Claim:
    """A claim with this text wherever a store takes one."""
    made = claim("k", now=1, on_lapse="uncertain")
    made.id = record_id("http", "default", text, f"{number}")  # type: ignore[misc]
    made.key = made.scope = made.target = text  # type: ignore[misc]
    return made


def fill(safe: RetrySafe, texts: list[str]) -> list[bytes]:
    ids = []
    for number, text in enumerate(texts):
        reply = safe.store.execute(build(text, number))
        record = reply.record
        assert record is not None
        if number % 3 == 0:
            safe.store.execute(Suspect(record.id, record.fence, text, now=2))
        elif number % 3 == 1:
            answer = Answer(200, text.encode("utf-8", "surrogatepass"), [("x-note", text)])
            safe.store.execute(Complete(record.id, record.fence, answer))
        else:
            safe.store.execute(Release(record.id, record.fence, text))
        ids.append(record.id)
    return ids


def fill_answers(safe: RetrySafe, texts: list[str] = HOSTILE) -> list[bytes]:
    """All of the texts as headers of answers, and in their bodies: 100 in each, which is less than is cut."""
    ids = []
    for place in range(0, len(texts), 100):
        some = texts[place : place + 100]
        record = safe.store.execute(claim(f"answer-{place}", now=1)).record
        body = "\n".join(some).encode("utf-8", "surrogatepass")
        safe.store.execute(Complete(record.id, record.fence, Answer(200, body, [("x-note", text) for text in some])))
        ids.append(record.id)
    return ids


def shape(safe: RetrySafe, path: str, *, post: Any = None) -> Any:
    visitor = Visitor(make_console(safe, actions=True))
    response = visitor.post(path, post) if post is not None else visitor.get(path)
    assert response.status == 200, response.body[-500:]
    return Markup(response.body)


@pytest.fixture
def hostile() -> Any:
    safe, tame = RetrySafe(MemoryStore()), RetrySafe(MemoryStore())
    yield safe, fill(safe, HOSTILE), tame, fill(tame, [TAME] * len(HOSTILE))
    safe.close()
    tame.close()


def test_every_page_of_a_key_has_the_elements_of_a_harmless_one(hostile: Any) -> None:
    safe, ids, tame, tame_ids = hostile
    known: dict[int, Any] = {}
    for number, (text, each) in enumerate(zip(HOSTILE, ids, strict=True)):
        found = shape(safe, f"/keys/{each.hex()}")
        wanted = known.setdefault(number % 3, None) or shape(tame, f"/keys/{tame_ids[number].hex()}").shape()
        known[number % 3] = wanted
        assert found.shape() == wanted, text
        if text.isprintable() and "  " not in text and text.strip() == text:
            assert " ".join(text.split()) in found.text, "it is shown as it is"


def test_revealed_bytes_are_text(hostile: Any) -> None:
    safe, ids, tame, tame_ids = hostile
    wanted = shape(tame, f"/keys/{tame_ids[1].hex()}/reveal", post={"because": "look"}).shape()
    for number in range(1, 300, 3):
        found = shape(safe, f"/keys/{ids[number].hex()}/reveal", post={"because": HOSTILE[number].replace("\0", "")})
        # One audit row more with each look.
        assert [each for each in found.shape() if each[0] not in ("li", "time", "br", "span")] == [
            each for each in wanted if each[0] not in ("li", "time", "br", "span")
        ], HOSTILE[number]


def test_all_of_them_are_text_as_headers_and_in_bodies(hostile: Any) -> None:
    safe, _, tame, _ = hostile
    pairs = zip(fill_answers(safe), fill_answers(tame, [TAME] * len(HOSTILE)), strict=True)
    for place, (hostile_id, tame_id) in enumerate(pairs):
        found, wanted = (
            shape(each, f"/keys/{id.hex()}/reveal", post={"because": "look"})
            for each, id in ((safe, hostile_id), (tame, tame_id))
        )
        assert found.shape() == wanted.shape()
        assert "Headers of the answer" in found.text
        shown = HOSTILE[place * 100 : place * 100 + 100]
        plain = [text for text in shown if text.isprintable() and "  " not in text and text.strip() == text]
        assert len([text for text in plain if found.text.count(text) >= 2]) == len(plain), "as a header and in the body"


def test_lists_have_the_elements_of_harmless_ones(hostile: Any) -> None:
    safe, _, tame, _ = hostile
    for path in ("/keys?state=uncertain", "/keys?state=completed", "/", "/outbox"):
        names = {tag for tag, _ in shape(tame, path).shape()}
        attributes = {name for _, attrs in shape(tame, path).shape() for name in attrs}
        found = shape(safe, path)
        assert {tag for tag, _ in found.shape()} <= names | {"table", "thead", "tbody", "tr", "td", "th", "a"}
        assert {name for _, attrs in found.shape() for name in attrs} <= attributes | {
            "data-label",
            "href",
            "class",
            "id",
            "scope",
        }
        assert not [1 for tag, attrs in found.tags if "hacked" in str(attrs.get("hx-get"))]


def test_what_comes_in_by_the_address_is_text_too() -> None:
    from urllib.parse import quote

    with RetrySafe("memory://") as safe:
        visitor = Visitor(make_console(safe, actions=True))
        for name in ("target", "scope", "key", "record", "topic", "name", "state", "cursor", "seen", "did"):
            for page in ("/keys", "/audit", "/outbox", "/operations"):
                tame = {tag for tag, _ in Markup(visitor.get(f"{page}?{name}=x").body).shape()}
                for text in HOSTILE[:60]:
                    found = Markup(visitor.get(f"{page}?{name}={quote(text)}").body)
                    assert {tag for tag, _ in found.shape()} == tame, (page, name, text)


def test_jobs_and_requests_of_developers_are_text(tmp_path: Any) -> None:
    log = LogFile(tmp_path / "requests.jsonl")
    with RetrySafe(f"sqlite:///{tmp_path}/x.db") as safe:
        safe.migrate()
        for number, text in enumerate(HOSTILE[:50]):
            stage_dead_letter(safe, f"{number:032x}", text.replace("\0", "") or "x")
            for body in (TAME, text):
                log.append(SeenRequest(1.0, "POST", f"/{text}", text, 422, False, text, {text: body}))
        visitor = Visitor(make_console(safe, actions=True, request_log=log.path))
        for path in ("/outbox?dead=1", "/requests"):
            found = Markup(visitor.get(path).body)
            assert not {tag for tag, _ in found.tags} & {"img", "iframe", "base", "math", "style", "object"}
            assert len([1 for tag, _ in found.tags if tag == "script"]) == 3
            for _, attrs in found.tags:
                assert not [name for name in attrs if name.startswith("on") or name == "style"]
                assert "hacked" not in str(attrs.get("hx-get", ""))


def test_the_diagram_of_an_operation_is_text() -> None:
    """The one value that is markup already. Names of operations come from code, and code takes them from anywhere."""
    shapes = set()
    for text in (TAME, *HOSTILE[:100]):
        with RetrySafe("memory://") as safe:
            operation = safe.operation(text.replace("@", "")[:200] or "x")

            @operation.foreign()
            def charge(amount: int, *, key: str) -> str:
                return ""

            page = Markup(Visitor(make_console(safe)).get("/operations").body)
            shapes.add(tuple(page.shape()))
    assert len(shapes) == 1


def test_there_are_a_thousand_of_them(hostile: Any) -> None:
    safe = hostile[0]
    seen, cursor = 0, ""
    while True:
        page = safe.store.execute(List(cursor=cursor, limit=500))
        seen += sum(record.kind == "http" for record in page.records)
        cursor = page.cursor
        if not cursor:
            break
    assert seen == len(HOSTILE) == 1_000
