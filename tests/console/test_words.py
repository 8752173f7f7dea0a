"""What the console tells an operator whom it refuses: in the words of its forms, and with a way back."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe.console import Operator
from retrysafe.console.form_words import find_way_back, translate
from tests.console.conftest import World
from tests.console.test_actions import fields
from tests.console.visitors import Visitor, make_console, text_of


def test_a_refused_form_names_its_own_fields_and_leads_back(world: World) -> None:
    page = f"/keys/{world.uncertain.id.hex()}"
    visitor = Visitor(make_console(world.safe, actions=True), "/ops")
    told = visitor.post(f"{page}/resolve", fields(world.uncertain, outcome="happened", because=""))
    assert (told.status, "--because" in text_of(told)) == (400, False)
    assert f'href="/ops{page}"'.encode() in told.body


def test_a_run_that_may_have_been_sent_names_the_box(world: World) -> None:
    visitor = Visitor(make_console(world.safe, actions=True))
    told = visitor.post(f"/keys/{world.run.id.hex()}/cancel", fields(world.run))
    assert (told.status, "--leave-effects" in text_of(told)) == (409, False)
    assert "“Leave what its steps did”" in text_of(told)


@pytest.mark.parametrize(
    ("text", "path", "shown"),
    [
        ("then say --leave-effects, and", "/keys/a/undo", "then tick “Leave what was sent and has no undo”, and"),
        ("undo it, or say --leave-effects to", "/keys/a/cancel", "undo it, or tick “Leave what its steps did” to"),
        ("say --was-not-sent; if", "/keys/a/resume", "tick “I looked there: what may have been sent was not”; if"),
        ("Say so (--answer FILE, or the box “Retries”)", "/keys/a/resolve", "Say so (tick “Retries”)"),
        ("`retrysafe keys why a --id`", "/keys/a/resume", "`retrysafe keys why a --id`"),
    ],
)
def test_options_become_boxes(text: str, path: str, shown: str) -> None:
    assert translate(text, path) == shown


def test_the_way_back_is_the_page_of_the_form() -> None:
    assert find_way_back("POST", "/keys/ab12/resolve") == ("/keys/ab12", "Back to the key")
    assert find_way_back("POST", "/outbox/ab12/drop") == ("/outbox", "Back to the outbox")
    assert find_way_back("POST", "/bulk") == ("/keys", "Back to the keys")
    assert find_way_back("GET", "/keys/ab12") == ("/", "Now")


def test_a_console_that_only_shows_prints_the_whole_command(world: World) -> None:
    shown = text_of(Visitor(make_console(world.safe)).get(f"/keys/{world.uncertain.id.hex()}"))
    assert f"retrysafe keys resolve {world.uncertain.id.hex()[:16]} --id" in shown


def test_an_operator_who_may_not_act_sees_why(world: World) -> None:
    def only_look(operator: Operator, action: str, record: Any) -> bool:
        return action == "look"

    page = f"/keys/{world.uncertain.id.hex()}"
    shown = text_of(Visitor(make_console(world.safe, actions=True, authorize=only_look)).get(page))
    assert "ann may not do this here: keys resolve" in shown
    allowed = text_of(Visitor(make_console(world.safe, actions=True)).get(page))
    assert "may not do this here" not in allowed
