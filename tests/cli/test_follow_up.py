"""What a command tells its reader to do next: a line that can be copied, for the right application."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from retrysafe import RetrySafe
from retrysafe.cli.main import main
from retrysafe.core.jobs import Job, Stage
from retrysafe.operators.follow_up import build_command, describe_action, name_store
from retrysafe.operators.near_keys import MAX_CANDIDATES, NearKeys
from retrysafe.stores.diagnosis import Diagnosis, bad
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim

BECAUSE = ("--because", "a test")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Two applications in one store."""
    url = f"sqlite:///{tmp_path}/shop.db"
    store = open_store(url)
    store.migrate()
    for namespace in ("default", "shop two"):
        store.execute(claim("guard", namespace=namespace, scope="acme", lease=0, now=None))
        store.execute(claim("job", namespace=namespace, scope="acme", lease=0, on_lapse="rerun", now=None))
    store.execute(Stage((Job("ab" * 16, "receipts", b"{}"),), namespace="shop two"))
    store.close()
    return url


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("keys", "release", "guard", "--scope", "acme", *BECAUSE), "keys resolve"),
        (("keys", "release", "nosuch", "--scope", "acme", *BECAUSE), "keys list"),
        (("keys", "forget", "nosuch", *BECAUSE), "keys list"),
        (("keys", "show", "nosuch"), "keys list"),
        (("keys", "why", "guard", "--scope", "acme"), "keys resolve"),
        (("outbox", "retry", "ffffffff", *BECAUSE), "outbox list --dead"),
        (("outbox", "drop", "ffffffff", "--waiting", *BECAUSE), "outbox list"),
        (("erase", "--scope", "acme", *BECAUSE), "keys list --scope acme"),
        (("trigger", "crash", "--lease", "1", *BECAUSE), "keys resolve"),
    ],
)
@pytest.mark.parametrize("namespace", ["default", "shop two"])
def test_a_command_that_is_named_names_the_application(
    url: str, words: tuple[str, ...], named: str, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([words[0], *words[1:], "--url", url, "--namespace", namespace])
    said = capsys.readouterr()
    line = next(line for line in (said.out + said.err).splitlines() if f"retrysafe {named}" in line)
    assert ("--namespace 'shop two'" in line) == (namespace == "shop two"), line


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("http", "--happened [--answer FILE --status N] | --did-not-happen --because TEXT"),
        ("operation", "--happened [--answer FILE --status N] | --did-not-happen --because TEXT"),
        # What a function returned has no status: `keys resolve` refuses one.
        ("function", "--happened [--answer FILE] | --did-not-happen --because TEXT"),
        ("job", "--happened [--answer FILE] | --did-not-happen --because TEXT"),
        ("audit", "--happened | --did-not-happen --because TEXT"),
    ],
)
def test_a_command_names_only_options_that_its_kind_takes(kind: str, how: str) -> None:
    assert describe_action("keys resolve", "5f3a9c01", "default", kind) == f"retrysafe keys resolve 5f3a9c01 --id {how}"


def test_a_follow_up_is_one_command_for_a_shell() -> None:
    shown = build_command("keys", "why", "a b; rm -rf $HOME", namespace="it's", then="--because TEXT")
    assert shlex.split(shown) == [
        "retrysafe", "keys", "why", "a b; rm -rf $HOME", "--namespace", "it's", "--because", "TEXT",
    ]  # fmt: skip


# The store that was given as an argument ----------------------------------------------------------


def find_commands(said: str) -> list[str]:
    """Every whole command that this text tells its reader to give, up to the options that the reader chooses."""
    return [found.strip(" `") for found in re.findall(r"retrysafe (?:[a-z-]+ )+[^`;\n]*", said)]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("keys", "why", "guard"), "keys resolve"),
        (("keys", "why", "nosuch"), "keys list"),
        (("keys", "show", "nosuch"), "keys list"),
        (("keys", "list", "--scope", "quite other"), "keys list"),
        (("stats", "--namespace", "quite other"), "keys list"),
        (("keys", "release", "guard", "--scope", "acme", *BECAUSE), "keys resolve"),
        (("keys", "forget", "nosuch", *BECAUSE), "keys list"),
        (("outbox", "retry", "ffffffff", *BECAUSE), "outbox list --dead"),
        (("erase", "--scope", "acme", *BECAUSE), "keys list --scope acme"),
        (("trigger", "crash", "--lease", "1", *BECAUSE), "keys resolve"),
    ],
)
def test_a_command_that_is_named_names_the_store_that_was_an_argument(
    url: str,
    words: tuple[str, ...],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It can be pasted: without its store it would ask which store."""
    monkeypatch.setenv("COLUMNS", "500")
    for given, environ, shown in ((url, "", True), (f"--url={url}", "sqlite:///other.db", True), ("", url, False)):
        monkeypatch.setenv("RETRYSAFE_URL", environ)
        main([*words, *filter(None, [given])])
        said = capsys.readouterr()
        command = next(each for each in find_commands(said.out + said.err) if each.startswith(f"retrysafe {named}"))
        assert (url in shlex.split(command)) == shown, command


def test_a_command_that_is_named_works_as_it_is_pasted(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RETRYSAFE_URL", raising=False)
    assert main(["keys", "why", "guard", "--namespace", "shop two", url]) == 0
    command = next(iter(find_commands(capsys.readouterr().out)))
    chosen = command.replace("--happened [--answer FILE --status N] | --did-not-happen", "--did-not-happen")
    assert main(shlex.split(chosen.replace("TEXT", "'it was not charged'"))[1:]) == 0
    assert "released  guard" in capsys.readouterr().out


def test_the_password_of_a_store_is_not_in_a_command() -> None:
    with name_store(url="postgresql://shop:hunter2@db/shop"):
        assert build_command("keys", "why", "a") == "retrysafe keys why a URL"
    with name_store(url="postgresql://shop@db/shop?table=a b"):
        assert build_command("keys", "why", "a") == "retrysafe keys why a 'postgresql://shop@db/shop?table=a b'"
    assert build_command("keys", "why", "a") == "retrysafe keys why a"


def test_a_command_that_is_named_names_the_application_object_that_was_an_argument() -> None:
    with name_store(app="shop:safe"):
        assert build_command("keys", "why", "a") == "retrysafe keys why a --app shop:safe"
        resume = describe_action("operations resume", "5f3a9c01", "default", "operation")
        assert resume == "retrysafe operations resume shop:safe 5f3a9c01 --id --because TEXT"
    with name_store(url="sqlite:///app.db"):  # these need the code, not the store
        resume = describe_action("operations resume", "5f3a9c01", "default", "operation")
        assert resume == "retrysafe operations resume MODULE:SAFE 5f3a9c01 --id --because TEXT"


@pytest.mark.parametrize("environ", [True, False])
def test_the_doctor_names_the_store_that_was_an_argument(
    tmp_path: Path, environ: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    bare = Diagnosis("SQLite", (bad("table", "missing", "best-effort", "why", "retrysafe migrate URL"),))
    monkeypatch.setattr("retrysafe.cli.doctor.diagnose_store", lambda url: bare)
    monkeypatch.setattr("retrysafe.cli.doctor.check_file", lambda url: None)
    monkeypatch.setenv("RETRYSAFE_URL", url if environ else "")
    main(["doctor", *([] if environ else [url])])
    assert capsys.readouterr().out.splitlines()[-1].split("fix:  ")[1] == (
        "retrysafe migrate" if environ else f"retrysafe migrate {url}"
    )
    if not environ:
        main(["doctor", "postgresql://shop:hunter2@db/shop", "--json"])
        assert json.loads(capsys.readouterr().out)["findings"][0]["fix"] == "retrysafe migrate URL"


# Near keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "meant", "scope"),
    [
        ("charge:7", "charge:{7}", ()),
        ("chrage:{7}", "charge:{7}", ()),
        ("CHARGE:{8}", "charge:{8}", ()),
        # With the scope only what can be computed is looked up: a search would read the whole store.
        ("charge:7", "charge:{7}", ("--scope", "tests.charge")),
        ("CHARGE:{8}", "charge:{8}", ("--scope", "tests.charge")),
    ],
)
def test_a_key_that_was_nearly_right_is_offered(
    tmp_path: Path, asked: str, meant: str, scope: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    safe = RetrySafe(f"sqlite:///{tmp_path}/app.db")
    safe.migrate()
    charge = safe.once("charge:{order}", scope="tests.charge")(lambda order: order)
    for order in (7, 8, 900):
        charge(order)
    safe.close()
    url = f"sqlite:///{tmp_path}/app.db"
    assert main(["keys", "why", asked, *scope, url]) == 3
    assert f"did you mean {meant!r}" in capsys.readouterr().err
    assert main(["keys", "forget", asked, *scope, url, *BECAUSE]) == 3
    assert f"did you mean {meant!r}" in capsys.readouterr().err
    assert main(["keys", "why", "nothing like it", *scope, url]) == 3
    assert "did you mean" not in capsys.readouterr().err


def test_a_part_of_a_key_is_enough_to_be_told_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A ticket says `order-7`; how the key is built is in the source of the application."""
    url = f"sqlite:///{tmp_path}/app.db"
    safe = RetrySafe(url)
    safe.migrate()
    charge = safe.once("charge:{order}", scope="tests.charge")(lambda order: order)
    for order in ("order-78", "order-7", "order-9"):
        charge(order)
    safe.close()
    assert main(["keys", "why", "order-7", url]) == 3
    told = capsys.readouterr().err
    assert f"did you mean 'charge:{{\"order-7\"}}' or 'charge:{{\"order-78\"}}'? `retrysafe keys list {url}`" in told
    assert main(["keys", "why", "or", url]) == 3
    assert "did you mean" not in capsys.readouterr().err, "two letters are in too many keys"
    assert main(["keys", "why", "nothing like it", url]) == 3
    assert f"no key 'nothing like it'; `retrysafe keys list {url}` lists the keys" in capsys.readouterr().err


def test_a_file_that_was_nearly_right_is_offered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("orders.db", "orders.db-wal", "orders.db-shm", "notes.txt"):
        (tmp_path / name).touch()
    assert main(["stats", f"sqlite:///{tmp_path}/order.db"]) == 5
    assert f"no file '{tmp_path}/order.db'; did you mean '{tmp_path}/orders.db'?\n" in capsys.readouterr().err
    for other in (f"{tmp_path}/payments.db", f"{tmp_path}/no-such-folder/orders.db"):
        assert main(["stats", f"sqlite:///{other}"]) == 5
        assert f"no file '{other}'\n" in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "notes.txt",
        "orders.db",
        "orders.db-shm",
        "orders.db-wal",
    ]


def test_a_name_that_was_nearly_right_is_offered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    safe = RetrySafe(url, namespace="shop")
    safe.migrate()
    safe.once("charge:{order}", scope="acct-ann")(lambda order: order)(7)
    safe.close()
    asked = {
        ("keys", "list", "--scope", "acct-an"): (0, "there is no record of scope 'acct-an'; did you mean 'acct-ann'?"),
        ("keys", "list", "--namespace", "shpo"): (0, "there is no record of namespace 'shpo'; did you mean 'shop'?"),
        ("stats", "--namespace", "shops"): (0, "there is no record of namespace 'shops'; did you mean 'shop'?"),
        ("erase", "--scope", "Acct-ann", "--namespace", "shop", *BECAUSE): (
            3,
            "so nothing was erased; did you mean 'acct-ann'?",
        ),
        ("erase", "--scope", "bob", "--namespace", "shop", *BECAUSE): (3, "so nothing was erased\n"),
        ("keys", "list", "--scope", "bob"): (0, "there is no record of scope 'bob': check the spelling"),
    }
    for words, (code, told) in asked.items():
        assert main([*words, url]) == code
        assert told in capsys.readouterr().err, words


@pytest.mark.parametrize("words", [("keys", "why"), ("keys", "show"), ("keys", "forget", *BECAUSE)])
def test_a_key_that_is_not_found_may_be_in_a_scope_like_that(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    safe = RetrySafe(url)
    safe.migrate()
    for scope in ("acct-ann", "tests.charge"):
        safe.once("charge:{order}", scope=scope)(lambda order: order)(7)
    safe.close()
    told = {
        "acct-an": "; did you mean the scope 'acct-ann'?",
        "Tests.Charge": "; did you mean the scope 'tests.charge'?",
    }
    for scope, meant in told.items():
        assert main([*words, "charge:{7}", "--scope", scope, url]) == 3
        assert meant in capsys.readouterr().err
    # Nothing is like it; and a scope that there is was not mistyped.
    for scope in ("quite other", "acct-ann"):
        assert main([*words, "charge:{999}", "--scope", scope, url]) == 3
        assert "did you mean" not in capsys.readouterr().err


def test_near_keys_are_bounded_and_ranked() -> None:
    near, store = NearKeys("charge:7"), open_store("memory://")
    one = store.execute(claim("any")).record
    assert one is not None
    for number in range(3 * MAX_CANDIDATES):
        near.look_at(one._replace(key=f"charge-{number:x}"))
    near.look_at(one._replace(key="charge:{7}"))
    near.look_at(one._replace(key="charge:7"))  # itself: of another scope, and no news
    found = near.find()
    assert found[0] == "charge:{7}"
    assert len(found) <= 3
    assert len(near._candidates) <= MAX_CANDIDATES


# Lists and audit rows -----------------------------------------------------------------------------


def test_a_list_says_whose_each_key_is(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["keys", "list", url])
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.rsplit("  ", 1)[-1].strip() for line in lines) == ["default"] * 2 + ["shop two"] * 2


def test_the_audit_line_of_an_erasure_counts_what_was_erased(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    safe = RetrySafe(url)
    safe.migrate()
    pay = safe.once("pay:{order}", scope="acme")(lambda order: order)
    for order in range(3):
        pay(order)
    safe.close()
    assert main(["erase", "--scope", "acme", url, *BECAUSE, "--yes"]) == 0
    capsys.readouterr()
    main(["audit", url])
    (line,) = capsys.readouterr().out.splitlines()
    assert "  3 records  " in line
