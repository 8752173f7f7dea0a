"""What an operator does: fenced, with a reason, and with an audit row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retrysafe.core.jobs import ListJobs
from retrysafe.core.ops import List, Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.engine.audit import AUDIT_KIND, AuditRow, read_audit
from retrysafe.testing.builders import claim, complete
from tests.console.conftest import World, stage_dead_letter
from tests.console.visitors import Markup, Visitor, make_console, text_of


@pytest.fixture
def visitor(world: World) -> Visitor:
    return Visitor(make_console(world.safe, actions=True))


def reread(world: World, record: Record) -> Record:
    found = world.safe.store.execute(Lookup(record.id)).record
    assert found is not None
    return found


def rows(world: World) -> list[AuditRow]:
    found = world.safe.store.execute(List(kind=AUDIT_KIND, limit=1000)).records
    return [read_audit(each, now=0) for each in found]


def only_row(world: World) -> AuditRow:
    (row,) = rows(world)
    return row


def fields(record: Record, **more: str) -> dict[str, str]:
    return {
        "because": "the bank says so", "attempt": str(record.attempt), "began": str(record.started), **more,
    }  # fmt: skip


def letter(world: World, id: str, because: str) -> dict[str, str]:
    """What the form of a dead letter sends."""
    (staged,) = [each for each in world.safe.store.execute(ListJobs(dead=True)) if each.job.id == id]
    return {"because": because, "sequence": str(staged.sequence), "died": str(staged.due)}


def test_it_did_not_happen(world: World, visitor: Visitor) -> None:
    path = f"/keys/{world.uncertain.id.hex()}"
    page = visitor.follow(visitor.post(f"{path}/resolve", fields(world.uncertain, outcome="did-not-happen")))
    assert "keys resolve: done." in text_of(page), "the page says what was done, from the audit row"
    assert reread(world, world.uncertain).state is State.RELEASED
    row = only_row(world)
    assert (row.actor, row.because, row.outcome) == ("ann", "the bank says so", "done")
    assert (row.details["happened"], row.details["before"], row.result["after"]) == (False, "uncertain", "released")
    assert row.records == (world.uncertain.id.hex(),)


def test_it_happened_and_this_is_the_answer(world: World, visitor: Visitor) -> None:
    answer = {"with_answer": "1", "status": "201", "content_type": "application/json", "answer": '{"id": 7}\r\n'}
    path = f"/keys/{world.uncertain.id.hex()}/resolve"
    assert visitor.post(path, fields(world.uncertain, outcome="happened", **answer)).status == 303
    stored = reread(world, world.uncertain).answer
    assert stored is not None
    assert (stored.status, stored.body, dict(stored.headers)) == (
        201, b'{"id": 7}\n', {"content-type": "application/json"},
    )  # fmt: skip


def test_it_happened_and_nobody_has_the_answer(world: World, visitor: Visitor) -> None:
    path = f"/keys/{world.uncertain.id.hex()}/resolve"
    assert visitor.post(path, fields(world.uncertain, outcome="happened")).status == 303
    stored = reread(world, world.uncertain).answer
    assert stored is not None
    assert stored.gone == "forgotten"


WRONG = [
    ({"because": " "}, "say why"),
    ({"outcome": "maybe"}, "maybe"),
    ({"attempt": "x"}, "'x'"),
    ({"attempt": ""}, "load the page"),
    ({"with_answer": "1", "status": "99"}, "'99'"),
    ({"with_answer": "1", "status": "20x"}, "'20x'"),
    ({"with_answer": "1", "content_type": "a\nb"}, "content type"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=lambda each: str(each)[:30])
def test_a_wrong_form_changes_nothing(world: World, visitor: Visitor, wrong: dict[str, str], said: str) -> None:
    sent = fields(world.uncertain, outcome="happened") | wrong
    response = visitor.post(f"/keys/{world.uncertain.id.hex()}/resolve", sent)
    assert (response.status, said in text_of(response)) == (400, True), text_of(response)
    assert reread(world, world.uncertain) == world.uncertain
    assert rows(world) == []


def test_an_attempt_that_was_not_shown_is_not_touched(world: World, visitor: Visitor) -> None:
    """I4: what the operator decided was about the attempt on the page."""
    sent = fields(world.uncertain, outcome="happened") | {"attempt": "2"}
    response = visitor.post(f"/keys/{world.uncertain.id.hex()}/resolve", sent)
    assert (response.status, "changed underneath" in text_of(response)) == (409, True)
    assert reread(world, world.uncertain) == world.uncertain


def test_an_owner_who_comes_back_wins(world: World, visitor: Visitor) -> None:
    world.safe.store.execute(complete(world.uncertain, b"mine", now=None))
    response = visitor.post(f"/keys/{world.uncertain.id.hex()}/resolve", fields(world.uncertain, outcome="happened"))
    assert response.status == 409
    assert reread(world, world.uncertain).answer.body == b"mine"  # type: ignore[union-attr]


def test_release_and_forget(world: World, visitor: Visitor) -> None:
    assert visitor.post(f"/keys/{world.lapsed.id.hex()}/release", fields(world.lapsed)).status == 303
    assert reread(world, world.lapsed).state is State.RELEASED
    assert visitor.post(f"/keys/{world.completed.id.hex()}/forget", fields(world.completed)).status == 303
    gone = reread(world, world.completed).answer
    assert gone is not None
    assert (gone.body, gone.gone) == (b"", "forgotten")
    assert {row.action for row in rows(world)} == {"keys release", "keys forget"}


def test_a_living_owner_is_left_alone(world: World, visitor: Visitor) -> None:
    assert visitor.post(f"/keys/{world.working.id.hex()}/release", fields(world.working)).status == 409
    assert reread(world, world.working) == world.working


def test_the_box_that_says_why_leads_to_what_can_be_done(world: World, visitor: Visitor) -> None:
    """The forms of a run are below its steps, its diagram and its timeline."""

    def read(record: Record) -> tuple[list[str], str]:
        page = visitor.get(f"/keys/{record.id.hex()}")
        tags = Markup(page.body).tags
        links = [str(attrs["href"]) for tag, attrs in tags if tag == "a" and str(attrs.get("href")).startswith("#act-")]
        assert {each.removeprefix("#") for each in links} <= {attrs.get("id") for _, attrs in tags}
        return links, text_of(page)

    assert read(world.uncertain)[0] == ["#act-keys-resolve"]
    assert read(world.run)[0] == ["#act-operations-resume", "#act-operations-undo", "#act-operations-cancel"]
    assert read(world.working)[0] == []
    assert "nothing to decide" in read(world.working)[1]
    assert read(world.completed)[0] == [], "to erase an answer is no decision that is asked for"
    assert "nothing to decide" in read(world.completed)[1]


def test_actions_that_cannot_apply_are_not_drawn(world: World, visitor: Visitor) -> None:
    def drawn(record: Record) -> set[str]:
        tags = Markup(visitor.get(f"/keys/{record.id.hex()}").body).tags
        return {str(attrs["action"]).rpartition("/")[2] for tag, attrs in tags if tag == "form"}

    assert drawn(world.uncertain) == {"resolve"}
    assert drawn(world.lapsed) == {"release"}
    assert drawn(world.working) == set()
    assert drawn(world.completed) == {"forget", "reveal"}
    assert drawn(world.run) >= {"resume", "undo", "reveal"}


def test_bytes_are_revealed_as_text_with_an_audit_row(world: World, visitor: Visitor) -> None:
    page = visitor.post(f"/keys/{world.completed.id.hex()}/reveal", fields(world.completed))
    assert "ch_secret" in text_of(page)
    assert page.header("cache-control") == "no-store"
    row = only_row(world)
    assert (row.action, row.because, row.outcome) == ("keys show", "the bank says so", "done")
    assert "ch_secret" not in json.dumps(row._asdict(), default=str), "S28: a row holds no body"
    refused = visitor.post(f"/keys/{world.completed.id.hex()}/reveal", {"because": ""})
    assert (refused.status, "ch_secret" in text_of(refused)) == (400, False)


def test_bytes_are_not_shown_if_the_row_cannot_be_written(
    world: World, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from retrysafe.core.ops import Claim
    from retrysafe.errors import StoreUnavailable

    execute = world.safe.execute

    def fail(op: Any) -> Any:
        if isinstance(op, Claim):
            raise StoreUnavailable("no writes")
        return execute(op)

    monkeypatch.setattr(world.safe, "execute", fail)
    response = visitor.post(f"/keys/{world.completed.id.hex()}/reveal", fields(world.completed))
    assert (response.status, "ch_secret" in text_of(response)) == (503, False)


def test_a_run_is_resumed(world: World, visitor: Visitor) -> None:
    page = visitor.follow(visitor.post(f"/keys/{world.run.id.hex()}/resume", fields(world.run)))
    assert "operations resume: done." in text_of(page)
    after = reread(world, world.run)
    assert (after.state, after.answer.status) == (State.COMPLETED, 201)  # type: ignore[union-attr]
    again = visitor.post(f"/keys/{world.run.id.hex()}/undo", fields(after))
    assert again.status == 409


def test_a_run_is_undone_once(world: World, visitor: Visitor) -> None:
    path = f"/keys/{world.run.id.hex()}/undo"
    refused = visitor.post(path, fields(world.run))
    assert (refused.status, "no undo" in text_of(refused)) == (409, True), "the carrier may have got the order"
    assert visitor.post(path, fields(world.run, leave_effects="1")).status == 303
    assert reread(world, world.run).state is State.COMPLETED
    assert visitor.post(f"/keys/{world.run.id.hex()}/undo", fields(world.run)).status == 409
    assert visitor.post(f"/keys/{world.run.id.hex()}/explode", fields(world.run)).status == 404


def test_dead_letters_are_retried_and_dropped(world: World, visitor: Visitor) -> None:
    job = "0f3a9c010f3a9c010f3a9c010f3a9c01"
    sent = letter(world, job, "the server is back")
    assert visitor.post(f"/outbox/{job}/retry", {"because": "x"}).status == 400, "no form of ours"
    told = visitor.follow(visitor.post(f"/outbox/{job}/retry", sent))
    assert "outbox retry: done. the server is back" in text_of(told)
    (staged,) = world.safe.store.execute(ListJobs())
    assert not staged.dead
    assert visitor.post(f"/outbox/{job}/drop", sent).status == 409, "it is no dead letter any more"
    assert only_row(world).records == (job,)


# Bulk ---------------------------------------------------------------------------------------------


BULK = {
    "verb": "keys resolve",
    "state": "uncertain",
    "outcome": "did-not-happen",
    "because": "none was charged",
    "cap": "10",
}


def crowd(world: World, number: int) -> list[Record]:
    made = [
        world.safe.store.execute(claim(f"bulk-{n}", scope="acme", target="POST /bulk", now=9)) for n in range(number)
    ]
    return [each.record for each in made]


def hidden_fields(page: bytes) -> list[tuple[str, str]]:
    """What the form of the preview sends."""
    found = []
    for tag, attrs in Markup(page).tags:
        if tag == "input" and attrs.get("name") != "csrf" and ("checked" in attrs or attrs.get("type") != "checkbox"):
            found.append((str(attrs["name"]), str(attrs.get("value", ""))))
    return found


def test_a_bulk_action_changes_what_it_showed(world: World, visitor: Visitor) -> None:
    records = crowd(world, 4)
    sent = BULK | {"target": "POST /bulk"}
    preview = visitor.post("/bulk", sent)
    assert "4 keys would be changed" in text_of(preview)
    assert "1970-01-01T00:00:09Z" in text_of(preview), "how old they are"
    assert rows(world) == [], "nothing was done yet"
    confirmed = hidden_fields(preview.body)
    done = visitor.post("/bulk/confirm", confirmed)
    assert "4 changed, 0 skipped." in text_of(done)
    assert {reread(world, each).state for each in records} == {State.RELEASED}
    assert reread(world, world.uncertain) == world.uncertain, "another target"
    row = only_row(world)
    assert set(row.records) == {each.id.hex() for each in records}
    assert (row.details["target"], row.details["cap"], row.result["changed"]) == ("POST /bulk", 10, 4)
    assert "as_of" in row.details
    again = visitor.post("/bulk/confirm", confirmed)
    assert "0 changed, 4 skipped." in text_of(again), "sending it again does nothing"
    assert b"banner good" in done.body
    assert b"banner warn" in again.body, "nothing done is not drawn as a success"


def test_what_changed_or_arrived_meanwhile_is_skipped_and_listed(world: World, visitor: Visitor) -> None:
    records = crowd(world, 3)
    preview = visitor.post("/bulk", BULK | {"target": "POST /bulk"})
    world.safe.store.execute(complete(records[0], b"done", now=None))
    late = crowd(world, 5)[3:]
    done = text_of(visitor.post("/bulk/confirm", hidden_fields(preview.body)))
    assert "2 changed, 1 skipped." in done
    assert records[0].id.hex()[:16] in done
    assert reread(world, records[0]).answer.body == b"done"  # type: ignore[union-attr]
    assert [reread(world, each).state for each in late] == [State.CLAIMED] * 2, "they were not on the page"


def test_the_cap_holds_and_is_said(world: World, visitor: Visitor) -> None:
    records = crowd(world, 5)
    preview = visitor.post("/bulk", BULK | {"target": "POST /bulk", "cap": "2"})
    assert "2 keys would be changed" in text_of(preview)
    assert "this is the cap" in text_of(preview)
    sent = hidden_fields(preview.body)
    more = [*sent, *(("row", f"{each.id.hex()}:1") for each in records)]
    assert visitor.post("/bulk/confirm", more).status == 400, "more rows than the cap"
    for wrong in ("0", "1001", "x"):
        assert visitor.post("/bulk", BULK | {"cap": wrong}).status == 400


def test_a_row_outside_the_filter_is_skipped(world: World, visitor: Visitor) -> None:
    crowd(world, 1)
    sent = hidden_fields(visitor.post("/bulk", BULK | {"target": "POST /bulk"}).body)
    foreign = [*sent, ("row", f"{world.uncertain.id.hex()}:1"), ("row", f"{'0' * 64}:1")]
    done = text_of(visitor.post("/bulk/confirm", foreign))
    assert "1 changed, 2 skipped." in done
    assert reread(world, world.uncertain) == world.uncertain


def test_rows_that_an_operator_may_not_change_are_skipped(world: World) -> None:
    crowd(world, 2)

    def authorize(operator: Any, action: str, record: Any) -> bool:
        return action == "look" or record is None or record.key != "bulk-1"

    visitor = Visitor(make_console(world.safe, actions=True, authorize=authorize))
    preview = visitor.post("/bulk", BULK | {"target": "POST /bulk"})
    assert "1 key would be changed, 1 left alone" in text_of(preview)
    other = next(each for each in crowd(world, 2) if each.key == "bulk-1")
    done = visitor.post("/bulk/confirm", [*hidden_fields(preview.body), ("row", f"{other.id.hex()}:1")])
    assert "you may not do this with it" in text_of(done)
    assert reread(world, other).state is State.CLAIMED


def test_a_bulk_release_takes_lapsed_claims_only(world: World, visitor: Visitor) -> None:
    preview = visitor.post("/bulk", {**BULK, "verb": "keys release", "state": "lapsed"})
    sent = hidden_fields(preview.body)
    assert [value for name, value in sent if name == "row"] == [f"{world.lapsed.id.hex()}:1"]
    assert "1 changed" in text_of(visitor.post("/bulk/confirm", sent))
    assert visitor.post("/bulk", {**BULK, "verb": "keys forget"}).status == 400
    assert visitor.post("/bulk", {**BULK, "key": "order-7"}).status == 400


def test_another_attempt_than_the_one_that_was_shown_is_skipped(world: World, visitor: Visitor) -> None:
    """Also if it began before the as-of time, by another clock."""
    names = {"scope": "acme", "target": "POST /held", "on_lapse": "rerun"}
    world.safe.store.execute(claim("held", now=9, **names))  # type: ignore[arg-type]
    preview = visitor.post("/bulk", {**BULK, "verb": "keys release", "state": "lapsed", "target": "POST /held"})
    taken = world.safe.store.execute(claim("held", now=5_000, **names)).record  # type: ignore[arg-type]
    assert taken.attempt == 2
    done = text_of(visitor.post("/bulk/confirm", hidden_fields(preview.body)))
    assert "0 changed, 1 skipped." in done
    assert "attempt 2 began, and attempt 1 was shown" in done
    assert reread(world, taken) == taken


def test_dead_letters_in_bulk(world: World, visitor: Visitor) -> None:
    stage_dead_letter(world.safe, "1f3a9c010f3a9c010f3a9c010f3a9c01", "mails")
    stage_dead_letter(world.safe, "2f3a9c010f3a9c010f3a9c010f3a9c01", "mails")
    preview = visitor.post("/outbox/bulk", {"verb": "retry", "topic": "mails", "cap": "10", "because": "it is back"})
    assert "2 jobs would be changed" in text_of(preview)
    sent = hidden_fields(preview.body)
    dropped = "1f3a9c010f3a9c010f3a9c010f3a9c01"
    assert visitor.post(f"/outbox/{dropped}/drop", letter(world, dropped, "not wanted")).status == 303
    done = text_of(visitor.post("/outbox/bulk/confirm", sent))
    assert "1 changed, 1 skipped." in done
    left = {each.job.id[0]: each.dead for each in world.safe.store.execute(ListJobs())}
    assert left == {"0": True, "2": False}
    details = [row.details["as_of"] for row in rows(world) if "as_of" in row.details]
    assert [text for text in details if not str(text).endswith("Z")] == [], "a time that can be read"
    again = visitor.post("/outbox/bulk/confirm", sent)
    assert "0 changed, 2 skipped." in text_of(again)
    assert b"banner warn" in again.body
    none = visitor.post("/outbox/bulk", {"verb": "retry", "topic": "mails", "cap": "10", "because": "it is back"})
    assert "No job would be changed." in text_of(none)
    assert b'href="/outbox?dead=1' in none.body, "there is a way back"


def test_the_audit_row_of_a_bulk_action_names_no_scope(world: World, visitor: Visitor) -> None:
    """It outlives what `retrysafe erase --scope` erases, and says only that one scope was asked for."""
    crowd(world, 1)
    sent = hidden_fields(visitor.post("/bulk", {**BULK, "scope": "acme", "target": "POST /bulk"}).body)
    assert "1 changed, 0 skipped." in text_of(visitor.post("/bulk/confirm", sent))
    (row,) = rows(world)
    assert (row.details["scope"], row.details["target"]) == ("one", "POST /bulk")
    assert "acme" not in repr(row)
