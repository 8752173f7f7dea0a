"""From figures to the result file, the page and the charts."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks import growth, page, profiling
from benchmarks.charts import chart
from benchmarks.harness import QUICK
from benchmarks.pgbench import read
from benchmarks.results import RESULTS, Part, Results, begun, circumstances, load, merged, newest, save
from benchmarks.stores import OFF, ON
from benchmarks.tables import Row, Table
from benchmarks.verdicts import verdicts

from tests.bench.builders import row, sample, table

SVG = "{http://www.w3.org/2000/svg}"
PAGE = f"# Speed\n\n{page.BEGIN}\nold\n{page.END}\n\nafter\n"


def pairs() -> Table:
    rows = [row("driver", 1, 10, 10, 10), row(ON, 1, 12, 11, 9), row("driver", 32, 10, 20, 10), row(ON, 32, 50, 80, 60)]
    return table("pairs", rows, targets=[(ON, 1, 1.2), (ON, 32, 4.0)])


def part(*tables: Table) -> Part:
    return Part(circumstances(QUICK, ["PostgreSQL 18"], 0.5), list(tables))


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    given = Results("2026-11-16", {"postgres": part(pairs())})
    assert load(save(tmp_path, given)) == given


def test_a_table_of_words_comes_back_and_is_on_the_page(tmp_path: Path) -> None:
    words = Table("instructions", "Instructions", "", heads=["store", "thousand"], cells=[["Redis", "987"]])
    given = Results("day", {"instructions": part(words)})
    assert load(save(tmp_path, given)) == given
    assert "| store | thousand |\n| --- | --- |\n| Redis | 987 |" in page.with_figures(PAGE, given)


def test_a_part_that_is_measured_again_replaces_only_itself(tmp_path: Path) -> None:
    first = Results("day", {"postgres": part(pairs()), "web": part(table("web", [row("bare", 32, 1)]))})
    save(tmp_path, first)
    again = part(table("web", [row("bare", 32, 2)]))
    save(tmp_path, merged(begun(tmp_path, "day"), "web", again))
    found = load(tmp_path / "day.json")
    assert found.parts == {"postgres": first.parts["postgres"], "web": again}


def test_the_newest_file_is_the_last_by_date(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    for name in ("2026-11-16", "2026-12-01", "2026-11-30"):
        save(tmp_path, Results(name, {}))
    found = newest(tmp_path)
    assert found is not None
    assert found.name == "2026-12-01"


def test_the_file_says_nothing_about_whose_machine_it_was(tmp_path: Path) -> None:
    text = save(tmp_path, Results("day", {"postgres": part(pairs())})).read_text()
    for private in (socket.gethostname(), str(Path.home()), str(Path(__file__).parents[2])):
        assert private not in text


def test_kept_results_name_no_host_and_no_path() -> None:
    kept = {path.name: path.read_text() for path in RESULTS.glob("*.json")}
    told = re.compile(r"://|@127|(?<![\w.])/\w+/")  # an address, or a path that begins at the root
    assert {name: told.findall(text) for name, text in kept.items() if told.search(text)} == {}


def test_the_page_shows_every_mode_and_every_verdict() -> None:
    shown = page.with_figures(PAGE, Results("day", {"postgres": part(pairs())}))
    assert "old" not in shown
    assert shown.startswith("# Speed\n")
    assert shown.endswith(f"{page.END}\n\nafter\n")
    assert "| pairs & <figures>, 1 caller | ≥ 1.2 | 1.10 [0.90..1.20] | **missed** |" in shown
    assert "| pairs & <figures>, 32 callers | ≥ 4 | 5.00 [4.00..6.00] | met |" in shown
    assert "| driver | 1.00 [1.00..1.00]<br>0.5 / 1 ms | 1.00 [1.00..1.00]<br>0.5 / 1 ms | 10 |" in shown
    assert "(speed-charts/pairs.svg)" in shown


def test_writing_the_page_leaves_no_chart_of_an_older_run(tmp_path: Path) -> None:
    target = tmp_path / "speed.md"
    target.write_text(PAGE)
    page.write(Results("day", {"a": part(table("older", [row("x", 1, 1)]))}), target)
    page.write(Results("day", {"a": part(pairs())}), target)
    assert [each.name for each in (tmp_path / page.CHARTS).iterdir()] == ["pairs.svg"]


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="figures: begin"):
        page.with_figures("# Speed\n", None)


def test_the_docs_show_the_newest_results() -> None:
    """`make bench-page` writes it anew."""
    found = newest()
    assert page.PAGE.read_text() == page.with_figures(page.PAGE.read_text(), found)
    for name, text in (page.charts(found) if found else {}).items():
        assert (page.PAGE.parent / page.CHARTS / name).read_text() == text


def test_a_chart_has_a_bar_a_spread_and_a_figure_for_each_row_and_a_mark_for_each_target() -> None:
    root = ElementTree.fromstring(chart(pairs()))
    classes = [each.get("class") for each in root.iter()]
    assert (classes.count("plain"), classes.count("ours"), classes.count("target")) == (2, 2, 2)
    assert classes.count("spread") == 3 * 4
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert {"driver", ON, "1 caller", "32 callers", "5.00 [4.00..6.00]"} <= set(texts)
    assert (classes.count("good"), classes.count("bad")) == (1, 1)


def test_a_chart_can_be_read_in_the_dark() -> None:
    text = chart(pairs())
    dark = text.partition("prefers-color-scheme: dark")[2]
    for each in (".card", "text", ".ours", ".target"):
        assert each in dark


def test_bars_stay_on_the_card() -> None:
    found = table("t", [row("driver", 1, 10), row(ON, 1, 170)], targets=[(ON, 1, 20.0)])
    root = ElementTree.fromstring(chart(found))
    width = float((root.get("viewBox") or "").split()[2])
    ends = [float(each.get("x", 0)) + float(each.get("width", 0)) for each in root.iter(f"{SVG}rect")]
    assert max([*ends, *(float(each.get("x2", 0)) for each in root.iter(f"{SVG}line"))]) <= width


# Verdicts -----------------------------------------------------------------------------------------


def test_ours_is_compared_with_the_best_package_on_the_same_store() -> None:
    rows = [row("bare", 32, 100), row("ours, Redis", 32, 60), row("ours as a dependency, Redis", 32, 90)]
    rows += [row("slow, Redis", 32, 10), row("good, Redis", 32, 30), row("fast, SQLite", 32, 80)]
    [found] = verdicts({"fastapi-edge-new-keys": table("fastapi-edge-new-keys", rows)})
    assert (found.beside, found.found.middle, found.asked, found.met) == ("good, Redis", 2.0, "≥ 1.8", True)


def test_nobody_is_compared_with_a_package_that_answers_wrongly() -> None:
    rows = [row("bare", 32, 100), row("ours, Redis", 32, 60), row("liar, Redis", 32, 90), row("good, Redis", 32, 50)]
    [found] = verdicts({"fastapi-inside-replays": table("fastapi-inside-replays", rows, wrong=["liar, Redis"])})
    assert (found.beside, found.met) == ("good, Redis", False)


def test_batching_is_asked_not_to_be_paid_for_by_the_slowest() -> None:
    off, on = Row(OFF, 128, [sample(10, p99=100)]), Row(ON, 128, [sample(20, p99=120)])
    [found] = verdicts({"postgres-async": table("postgres-async", [row("asyncpg", 128, 10), off, on])})
    assert (found.found.middle, found.asked, found.met) == (1.2, "≤ 1", False)


def test_what_was_not_measured_says_nothing() -> None:
    assert verdicts({"t": table("t", [row("a", 1, 1)], targets=[(ON, 128, 7.0)])}) == []


def test_pgbench_is_read_from_its_report() -> None:
    report = (
        "transaction type: -\nlatency average = 2.953 ms\ninitial connection time = 1.2 ms\ntps = 2709.4 (without)\n"
    )
    found = read(report)
    assert (found.rate, found.p50, found.p99) == (2709.4, 2.953, 2.953)


def test_a_plan_is_read_for_pages_and_log() -> None:
    plan = {"Shared Hit Blocks": 12, "Shared Read Blocks": 3, "WAL Bytes": 8400, "WAL FPI": 1}
    assert str(growth.read(plan)) == "15 pages touched, 8,400 bytes of log with 1.0 whole pages in them"


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        ("/x/src/retrysafe/web/asgi.py", "retrysafe.web"),
        ("/x/lib/python3.11/site-packages/fastapi/routing.py", "fastapi"),
        ("/x/lib/python3.11/asyncio/tasks.py", "asyncio"),
        ("/x/lib/python3.11/typing.py", "python"),
        ("~", "in C"),
    ],
)
def test_time_is_shared_out_among_packages(file: str, whose: str) -> None:
    assert profiling.package(file) == whose
