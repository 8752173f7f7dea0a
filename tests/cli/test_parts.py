"""The parts of the command line: settings, arguments, decisions, completion, and how much a start imports."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from retrysafe.cli import completion
from retrysafe.cli.key_actions import decide_forget, decide_release, decide_resolve
from retrysafe.cli.main import COMMANDS, build_parser, main
from retrysafe.cli.operations import translate_old
from retrysafe.cli.output import format_age, printable
from retrysafe.cli.parsing import move_app, move_url, suggest
from retrysafe.cli.settings import choose_setting, read_files
from retrysafe.core.ops import Release, Resolve
from retrysafe.core.records import Record
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.why import explain
from retrysafe.errors import UsageError
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.builders import advance, claim, complete, release, suspect

# Settings -----------------------------------------------------------------------------------------


def test_an_argument_goes_before_the_environment_and_that_before_files() -> None:
    files = {"retrysafe.toml": {"url": "sqlite:///c"}, "pyproject.toml": {"url": "sqlite:///d", "namespace": "shop"}}
    environ = {"RETRYSAFE_URL": "sqlite:///b"}
    assert choose_setting("url", "sqlite:///a", environ, files)[1:] == ("sqlite:///a", "argument")
    assert choose_setting("url", None, environ, files)[1:] == ("sqlite:///b", "RETRYSAFE_URL")
    assert choose_setting("url", None, {}, files)[1:] == ("sqlite:///c", "retrysafe.toml")
    assert choose_setting("namespace", None, {}, files)[1:] == ("shop", "pyproject.toml")
    assert choose_setting("namespace", None, {}, {})[1:] == ("default", "default")
    assert choose_setting("url", None, {}, {})[1:] == ("", "")


def test_files_are_read_and_checked(tmp_path: Path) -> None:
    assert read_files(tmp_path) == {}
    (tmp_path / "pyproject.toml").write_text('[tool.retrysafe]\nurl = "sqlite:///d"\n[tool.other]\nx = 1\n')
    (tmp_path / "retrysafe.toml").write_text('url = "sqlite:///c"\n')
    assert read_files(tmp_path)["retrysafe.toml"] == {"url": "sqlite:///c"}
    assert read_files(tmp_path)["pyproject.toml"] == {"url": "sqlite:///d"}
    for wrong in ('ulr = "x"', "url = ["):
        (tmp_path / "retrysafe.toml").write_text(wrong)
        with pytest.raises(UsageError, match=r"retrysafe\.toml"):
            read_files(tmp_path)
    with pytest.raises(UsageError, match="quotation marks"):
        choose_setting("url", None, {}, {"retrysafe.toml": {"url": 7}})


def test_a_password_is_not_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RETRYSAFE_URL", "postgresql://u:hunter2@h/db")
    assert main(["config"]) == 0
    out = capsys.readouterr().out
    assert "RETRYSAFE_URL" in out
    assert "hunter2" not in out


# Arguments ----------------------------------------------------------------------------------------


def takes_value(option: str) -> bool:
    return option == "--scope"


@pytest.mark.parametrize(
    ("words", "moved"),
    [
        (["sqlite:///a", "k"], ["--url=sqlite:///a", "k"]),
        (["k", "--json", "sqlite:///a"], ["k", "--json", "--url=sqlite:///a"]),
        (["--scope", "redis://x", "k"], ["--scope", "redis://x", "k"]),
        (["https://a/b"], ["https://a/b"]),
        (["--", "sqlite:///a"], ["--", "sqlite:///a"]),
        (["k"], ["k"]),
    ],
)
def test_a_url_is_found_wherever_it_stands(words: list[str], moved: list[str]) -> None:
    assert move_url(words, takes_value) == moved


def test_an_application_is_the_first_of_more_than_enough() -> None:
    assert move_app(["app:safe", "order:7"], takes_value, 1) == ["--app=app:safe", "order:7"]
    assert move_app(["order:7", "--scope", "s"], takes_value, 1) == ["order:7", "--scope", "s"]
    assert move_app(["--scope", "s", "app:safe"], takes_value, 0) == ["--scope", "s", "--app=app:safe"]


def test_old_spellings_are_translated(capsys: pytest.CaptureFixture[str]) -> None:
    assert translate_old(["a:b", "--undo", "7", "--because", "x"]) == ["undo", "a:b", "7", "--because", "x"]
    assert translate_old(["a:b", "--show=7"]) == ["show", "a:b", "7"]
    assert translate_old(["a:b"]) == ["declared", "a:b"]
    assert translate_old(["list", "a:b"]) == ["list", "a:b"]
    assert translate_old(["lst"]) == ["lst"]
    assert translate_old(["--help"]) == ["--help"]


def test_did_you_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert suggest("invalid choice: 'lst' (…)", ["list", "show"], []) == "; did you mean 'list'?"
    assert suggest("unrecognized arguments: --jsno", [], ["--json"]) == "; did you mean '--json'?"
    assert suggest("invalid choice: 'zzz'", ["list"], []) == ""
    assert suggest("unrecognized arguments: --scope ann", [], ["--json", "--url"]) == "", "both have dashes and an o"
    for words in (["kyes", "list"], ["keys", "lst"], ["operations", "undoo", "a:b"]):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 2
        assert "did you mean" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("keys list --sate uncertain", "--state"),
        ("keys resolve order-7 --did-not-happen --becuase x", "--because"),
        ("stats --jsno", "--json"),
        ("operations list a:b --jsno", "--json"),
        ("worker a:b --onec", "--once"),
    ],
)
def test_a_mistyped_option_is_compared_with_those_of_its_command(
    words: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parser of the whole program finds it, and knows no other options than --help and --version."""
    with pytest.raises(SystemExit) as stopped:
        main(words.split())
    said = capsys.readouterr().err
    command = " ".join(word for word in words.split()[:2] if word in ("keys", "list", "resolve", "stats", "operations"))
    assert (stopped.value.code, f"did you mean {meant!r}?" in said) == (2, True), said
    assert said.startswith(f"usage: retrysafe {command}"), "and the usage is that of the command"


# Decisions ----------------------------------------------------------------------------------------


def make(*, lease: float = 30, on_lapse: str = "uncertain", target: str = "POST /pay") -> tuple[MemoryStore, Record]:
    store = MemoryStore()
    reply = store.execute(claim("k", lease=lease, on_lapse=on_lapse, target=target, now=0))  # type: ignore[arg-type]
    assert reply.record is not None
    return store, reply.record


def at(seconds: float) -> int:
    return round(seconds * SECOND_MICROS)


def test_what_is_uncertain_is_resolved_and_nothing_else() -> None:
    _, record = make()
    assert decide_resolve(record, at(29), None, "x").op is None
    assert decide_resolve(record, at(30), None, "x").op == Resolve(record.id, record.fence, None, "x")


def test_only_what_may_run_again_is_released() -> None:
    _, guard = make()
    assert "resolve" in decide_release(guard, at(40), "x", owner_is_dead=True).refusal
    assert "resolve" in decide_release(guard, at(10), "x", owner_is_dead=True).refusal, "a guard may have happened"
    alive = decide_release(guard, at(10), "x", owner_is_dead=False).refusal
    assert ("at work" in alive, "nobody knows" in alive) == (True, False), (
        "its owner is alive, and resolving is refused"
    )
    assert "--owner-is-dead" not in alive, "it would not help: a guard is resolved"
    _, job = make(on_lapse="rerun")
    assert "at work" in decide_release(job, at(10), "x", owner_is_dead=False).refusal
    wanted = Release(job.id, job.fence, "x")
    assert decide_release(job, at(10), "x", owner_is_dead=True).op == wanted
    assert decide_release(job, at(40), "x", owner_is_dead=False).op == wanted
    store, done = make(on_lapse="rerun")
    store.execute(complete(done, now=1))
    finished = store._records[done.id]
    assert "completed" in decide_release(finished, at(40), "x", owner_is_dead=True).refusal


def test_unfinished_work_is_not_forgotten() -> None:
    store, record = make(on_lapse="resume")
    assert decide_forget(record, at(1)).op is None
    store.execute(advance(record, now=1))
    store.execute(release(store._records[record.id], now=2))
    assert decide_forget(store._records[record.id], at(3)).op is None, "released at a recovery point"


def test_why_agrees_with_what_a_retry_gets() -> None:
    """For each state, what is said of the next retry is what the store does with it."""
    for on_lapse, settle, now, runs in (
        ("uncertain", None, 10, False),
        ("uncertain", None, 40, False),
        ("rerun", None, 40, True),
        ("resume", None, 40, True),
        ("uncertain", complete, 40, False),
        ("uncertain", release, 40, True),
        ("uncertain", suspect, 10, False),
        ("uncertain", complete, 90_000, True),
    ):
        store, record = make(on_lapse=on_lapse)
        if settle is not None:
            assert store.execute(settle(record, now=1))  # type: ignore[operator]
        found = explain(store._records[record.id], at(now))
        retry = store.execute(replace(claim("k", target="POST /pay", now=now)))
        assert found.next_retry.startswith("it runs") == runs == retry.granted, (on_lapse, settle, now, found)


# Output -------------------------------------------------------------------------------------------


def test_ages_and_texts_are_for_people() -> None:
    assert [format_age(at(each)) for each in (0, 119, 120, 7_199, 7_200, 172_800)] == [
        "0 s", "119 s", "2 min", "119 min", "2 h", "2 d",
    ]  # fmt: skip
    assert printable("a\x1b[2Jb") == "a?[2Jb", "a stored text does not move the cursor"


def test_completion_knows_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = completion.list_words(build_parser())
    assert {"keys", "erase", "completion"} <= set(words[""])
    assert "--because" in words["keys/resolve"]
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    asked = "COMP_WORDS=(retrysafe keys resolve --bec); COMP_CWORD=3; _retrysafe; echo ${COMPREPLY[@]}"
    done = subprocess.run(["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "--because"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("retrysafe keys resolve --bec", "--because"),
        ("retrysafe --json keys rel", "release"),
        ("retrysafe operat", "operations"),
        ("retrysafe keys list --sta", "--state"),
    ],
)
@pytest.mark.parametrize("autoloaded", [True, False])
def test_completion_in_zsh(
    line: str, expected: str, autoloaded: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a real zsh, from a folder of $fpath and by eval. Only what its line editor sets is given by hand."""
    assert main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#compdef retrysafe\n")
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("no zsh here")
    (tmp_path / "_retrysafe").write_text(script)
    load = "autoload -Uz _retrysafe" if autoloaded else f"source {tmp_path}/_retrysafe"
    asked = f"""
        fpath=({tmp_path} $fpath)
        compdef() {{ : }}
        compadd() {{ shift; print -l -- $@ }}
        {load}
        words=({line}); CURRENT=$#words
        _retrysafe
    """
    done = subprocess.run([zsh, "-f", "-c", asked], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr == ""
    assert expected in done.stdout.split()


def test_a_command_has_one_help_text() -> None:
    """`retrysafe --help` imports no command, so it has a text of its own. The reference page has the command's."""
    (commands,) = [each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction)]
    assert {each.dest: each.help for each in commands._choices_actions} == {
        name: text for name, (_, text) in COMMANDS.items()
    }


def test_help_imports_little_of_ours() -> None:
    """A count, not a time: the machine may be busy. `python -X importtime -m retrysafe --help` has the times."""
    code = "import sys; from retrysafe.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "print(*[each for each in sys.modules if each.startswith('retrysafe')], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert sorted(done.stderr.split()) == [
        "retrysafe", "retrysafe.cli", "retrysafe.cli.main", "retrysafe.cli.parsing", "retrysafe.stores",
        "retrysafe.stores.schemes",
    ]  # fmt: skip
