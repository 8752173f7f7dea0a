"""A failing seed is a story: made short, told in sentences, drawn, and told again by one command."""

from __future__ import annotations

import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

from retrysafe.testing.simulation import shrink
from retrysafe.testing.simulation.drawing import draw_svg
from retrysafe.testing.simulation.history import History, SentMessage
from retrysafe.testing.simulation.replay import main
from retrysafe.testing.simulation.shop import SHOP
from retrysafe.testing.simulation.timeline import format_timeline
from tests.simulation.ablations import ABLATIONS, find_seed


def test_a_story_is_told_drawn_and_told_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ablation = next(each for each in ABLATIONS if each.name == "completed runs again")
    seed = find_seed(ablation, 0, 150)
    assert seed is not None
    with ablation.patch():
        story = shrink(seed, SHOP, max_runs=20)
        drawing = story.draw()
        assert main([*shlex.split(story.command)[3:], "--runs", "3", "--svg", str(tmp_path / "story.svg")]) == 1
    assert "THE RULE IS BROKEN: I5 write-once" in str(story)
    assert story.command.startswith(
        "python -m retrysafe.testing.simulation.replay retrysafe.testing.simulation.shop:SHOP"
    )
    assert f"seed {seed}: I5 write-once" in capsys.readouterr().out
    assert ElementTree.fromstring(drawing).tag.endswith("svg")
    assert "rule broken" in drawing
    assert (tmp_path / "story.svg").read_text().startswith("<svg")


def test_a_seed_that_breaks_no_rule_is_shown_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = "retrysafe.testing.simulation.shop:SHOP"
    assert main([scenario, "--seed", "2", "--kinds", "operation", "--svg", str(tmp_path / "a.svg")]) == 0
    assert "seed 2 breaks no rule" in capsys.readouterr().out
    assert "POST operation" in (tmp_path / "a.svg").read_text()


def test_a_timeline_is_sentences() -> None:
    history = History()
    history.note(1.0, "app-1", "request_lost", "p1", message="charge", to="provider")
    history.note(2.0, "app-1", "killed")
    for at in (3.0, 4.0, 5.0):
        history.note(at, "client", "told", "p1", status=409, body=b"")
    history.note(6.0, "broker", "something of an actor's own", "p1", number=7)
    assert format_timeline(history.events).splitlines() == [
        "     1.000 s  app-1 sends charge of p1 to provider: the request is LOST on its way",
        "     2.000 s  app-1 is KILLED",
        "     3.000 s  client is told 409 (3 times, until 5.000 s)",
        "     6.000 s  broker: something of an actor's own p1 number=7",
    ]


def test_a_drawing_has_lanes_arrows_and_marks() -> None:
    history = History(detailed=True)
    history.messages.append(SentMessage(1.0, "app-1", "store", "Claim", "", "", arrived=1.001))
    history.messages.append(SentMessage(2.0, "app-1", "provider", "charge", "p<1>", "request_lost"))
    history.messages.append(SentMessage(3.0, "app-1", "store", "Complete", "", "doubled", arrived=3.001, copied=9.0))
    history.messages.append(SentMessage(4.0, "worker-1", "store", "List", "", "", arrived=4.001))
    history.note(5.0, "app-1", "killed")
    drawing = draw_svg(history, "seed 1 & more")
    ElementTree.fromstring(drawing)
    texts = [element.text for element in ElementTree.fromstring(drawing).iter() if element.text]
    assert [name for name in ("app-1", "store", "provider") if name in texts] == ["app-1", "store", "provider"]
    assert "worker-1" not in texts, "what hosts send all the time is left out"
    assert "charge p<1>: request_lost" in texts
    assert "second copy" in texts
    assert "✕ killed" in texts
    assert "seed 1 & more" in texts
