"""Texts that an operator who had only the documents did not understand, and commands that are meant by another word."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path

import pytest

from retrysafe import KeyRing, RetrySafe
from retrysafe.cli.main import main
from retrysafe.core.jobs import FailJob, Job, Stage, TakeJobs
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.why import explain
from retrysafe.errors import AnswerGone
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim
from retrysafe.web.problems import GONE

ID = "0f3a9c010f3a9c010f3a9c010f3a9c01"
BECAUSE = ("--because", "a look")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with a dead letter."""
    url = f"sqlite:///{tmp_path}/app.db"
    assert main(["migrate", url]) == 0
    store = open_store(url)
    store.execute(Stage((Job(ID, "receipts", b"{}"),), namespace="default"))
    store.execute(TakeJobs(1, b"t" * 16, 60 * SECOND_MICROS, namespace="default"))
    assert store.execute(FailJob(ID, b"t" * 16, "it is down", 0, dead=True))
    store.close()
    return url


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    try:
        found = main(words)
    except SystemExit as ended:  # argparse
        found = int(ended.code or 0)
    shown = capsys.readouterr()
    assert found == code, shown
    return shown.out + shown.err


# Jobs ---------------------------------------------------------------------------------------------


def test_a_dead_letter_is_not_due(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, "outbox", "list", url)
    assert "1 delivery " in shown
    assert "due 20" not in shown
    assert "died 20" in shown


@pytest.mark.parametrize(("verb", "word"), [("drop", "dropped"), ("retry", "due now")])
def test_an_action_on_a_job_says_what_it_did(
    url: str, verb: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"would be {word}" in said(capsys, "outbox", verb, url, "--all", *BECAUSE)
    shown = said(capsys, "outbox", verb, url, ID[:8], *BECAUSE)
    assert f"receipts  {word}" in shown
    assert "1 changed" in shown


# Keys ---------------------------------------------------------------------------------------------


def test_a_sealed_body_is_named_and_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/sealed.db"
    ring = KeyRing({"one": secrets.token_bytes(32)})

    def open_shop() -> RetrySafe:
        safe = RetrySafe(url, keyring=ring)
        safe.migrate()
        return safe

    safe = open_shop()
    assert safe.once("k:{name}")(lambda name: f"secret of {name}")("ann").endswith("ann")
    safe.close()
    shown = said(capsys, "keys", "show", url, 'k:{"ann"}', "--body")
    assert "--app MODULE:SAFE" in shown
    assert "rs1" not in shown
    monkeypatch.setattr("retrysafe.cli.import_object.load_safe", lambda name: open_shop())
    assert "secret of ann" in said(capsys, "keys", "show", 'k:{"ann"}', "--body", "--app", "shop:safe")


def test_an_export_with_a_ring_does_not_ask_for_the_ring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial before an old key is removed: the ring has only the new one."""
    url = f"sqlite:///{tmp_path}/sealed.db"
    with closing(RetrySafe(url, keyring=KeyRing({"old": secrets.token_bytes(32)}))) as safe:
        safe.migrate()
        safe.once("k:{name}")(lambda name: f"secret of {name}")("ann")
    trial = RetrySafe(url, keyring=KeyRing({"new": secrets.token_bytes(32)}))
    monkeypatch.setattr("retrysafe.cli.import_object.load_safe", lambda name: trial)
    told = said(capsys, "keys", "export", "--app", "trial:safe", code=1)
    assert "1 record could not be read and is missing: damaged, or its encryption key is not in the ring" in told
    assert "--app" not in told


def test_why_says_who_may_end_the_doubt(url: str) -> None:
    found = explain(open_store(url).execute(claim("lost", lease=0, now=1)).record, 10_000_000)
    assert found.state == "uncertain"
    assert "probe" not in found.by_itself, "a word that no page explains"
    assert "until an operator says how it ended" in found.by_itself
    assert "could not reach the store" in found.because, "the owner may have lived"


def test_an_answer_that_is_gone_says_each_reason() -> None:
    assert "an operator said that it happened" in GONE.detail
    assert "an operator said that it happened" in str(AnswerGone("k", "forgotten"))


# Words of the command line ------------------------------------------------------------------------


def test_a_file_is_offered_as_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("shop.db", "data/shop.sqlite3"):
        assert f"sqlite:///{name}" in said(capsys, "stats", name, code=2)
    assert "duckdb:///shop.duckdb" in said(capsys, "keys", "list", "shop.duckdb", code=2)
    assert "sqlite:///" not in said(capsys, "stats", "shop", code=2)


def test_another_shell_is_no_typing_error(capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, "completion", "fish", code=2)
    assert "did you mean" not in shown
    assert "bash" in shown
    assert "did you mean 'bash'" in said(capsys, "completion", "bas", code=2)


def test_the_worker_takes_the_application_of_the_settings(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    monkeypatch.setattr("retrysafe.cli.worker.load_safe", lambda name: names.append(name) or RetrySafe(url))
    monkeypatch.delenv("RETRYSAFE_APP", raising=False)
    assert "RETRYSAFE_APP" in said(capsys, "worker", "--once", code=2)
    monkeypatch.setenv("RETRYSAFE_APP", "shop:safe")
    said(capsys, "worker", "--once")
    said(capsys, "worker", "other:safe", "--once")
    said(capsys, "worker", "--once", "--app", "third:safe")
    assert names == ["shop:safe", "other:safe", "third:safe"]
