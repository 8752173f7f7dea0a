"""The built site: it has every page, no dead link or anchor, and loads nothing from outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

import pytest
import yaml
from tools.errors_page import find_all_errors, find_all_problems

from retrysafe.engine.problem_documents import DOCS_URL, Problem, build_page_address, read_type_form
from retrysafe.errors import UsageError
from retrysafe.web.problems import Codes, build_problem_response
from tests.built_site import build_site

pytestmark = pytest.mark.xdist_group("site")  # one process builds it, once

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=yaml.BaseLoader)
LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}
FETCHED_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "manifest", "preconnect", "dns-prefetch"}
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)

TRIGGERS = (
    'data-md-component="source"',
    *(f'class="{name}' for name in ("mermaid", "arithmatex", "glightbox", "pyodide")),
)


class Page(HTMLParser):
    """What a page links to, what a browser loads for it, and the ids that others may link to."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.styles = ""
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        self.styles += values.get("style", "")
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADS and values.get(LOADS[tag]):
            self.loads.append(values[LOADS[tag]])
        if tag == "link" and FETCHED_LINKS & set(values.get("rel", "").split()):
            self.loads.append(values.get("href", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """The pages of the site by their address, from the root of the site."""
    return {address(file, site): Page(file) for file in site.rglob("*.html")}


def address(file: Path, site: Path) -> str:
    return "/" + str(file.relative_to(site)).removesuffix("index.html")


def site_links(pages: dict[str, Page]) -> Iterator[tuple[str, str, str]]:
    """Page, path and anchor of each link that stays on the site."""
    base = SETTINGS["site_url"].rstrip("/")
    for page, found in pages.items():
        if page == "/404.html":
            continue
        for link in found.links:
            target = urlparse(urljoin(base + page, link))
            if f"{target.scheme}://{target.netloc}" == base:
                yield page, unquote(target.path), unquote(target.fragment)


def test_every_page_is_built_and_in_the_navigation(pages: dict[str, Page]) -> None:
    named = set(re.findall(r"[\w./-]+\.md", yaml.dump(SETTINGS["nav"])))
    written = {str(file.relative_to(ROOT / "docs")) for file in (ROOT / "docs").rglob("*.md")}
    by_index = {name for name in written if name.startswith(("problems/", "decisions/"))}
    assert written - named - by_index == set(), "add these pages to `nav` in mkdocs.yml"
    assert len(pages) >= len(written)


def test_no_item_of_a_numbered_list_is_read_as_text(site: Path) -> None:
    """After an indented paragraph, a list resumes only behind an empty line. GitHub is lenient, the site is not."""
    paragraph = re.compile(r"<p>((?:(?!</p>).)*)</p>", re.DOTALL)
    swallowed = [
        file.parent.name
        for file in site.rglob("*.html")
        for text in paragraph.findall(file.read_text())
        if re.search(r"\n\d+\. ", text)
    ]
    assert swallowed == []


def test_no_numbered_list_begins_again_in_the_middle(site: Path) -> None:
    """A code block without indentation ends a list. The site then numbers the next item from 1 again."""
    counted = {}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        written = len(re.findall(r"^ *1\. ", FENCE.sub("", page.read_text()), re.MULTILINE))
        name = page.relative_to(ROOT / "docs").with_suffix("")
        built = site / (name.parent if name.name == "index" else name) / "index.html"
        counted[str(name)] = (written, built.read_text().count("<ol>"))
    assert {name: both for name, both in counted.items() if both[0] != both[1]} == {}


def test_a_list_in_a_list_is_indented_by_four_columns() -> None:
    """With fewer the site puts its items into the outer list."""
    found = [
        f"{page.name}: {line}"
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for line in re.findall(r"^ {1,3}(?:[-*]|\d+\.) .*", FENCE.sub("", page.read_text()), re.MULTILINE)
    ]
    assert found == []


def test_every_row_of_a_table_has_as_many_cells_as_its_head() -> None:
    """A bare `|` begins a cell, in code too. What is beyond the last column is not shown."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for table in re.findall(r"(?:^\|.*\n)+", FENCE.sub("", page.read_text()), re.MULTILINE):
            head, *rows = [len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()]
            assert [row for row in rows if row != head] == [], f"{page}: {table[:80]}"


def test_no_link_and_no_anchor_is_dead(site: Path, pages: dict[str, Page]) -> None:
    dead = []
    for page, path, anchor in site_links(pages):
        target = path if path in pages else f"{path}/"
        if target not in pages:
            dead += [] if (site / path.lstrip("/")).is_file() else [f"{page} -> {path}"]
        elif anchor and anchor not in pages[target].ids and not anchor.startswith("__"):
            dead.append(f"{page} -> {path}#{anchor}")
    assert dead == []


def test_no_page_loads_anything_from_outside(site: Path, pages: dict[str, Page]) -> None:
    outside = [(page, load) for page, found in pages.items() for load in found.loads if urlparse(load).netloc]
    assert outside == []
    assert [page for page, found in pages.items() if "url(http" in found.styles] == []
    for style in site.rglob("*.css"):
        assert re.findall(r"url\(['\"]?(?:https?:)?//[^)]*\)|@import[^;]*//[^;]*;", style.read_text()) == [], style.name


def test_no_page_uses_what_the_theme_would_fetch(pages: dict[str, Page], site: Path) -> None:
    """The theme loads Mermaid and MathJax from a CDN when a page has such a block, and the stars of `repo_url` from
    api.github.com."""
    for file in site.rglob("*.html"):
        text = file.read_text()
        assert [trigger for trigger in TRIGGERS if trigger in text] == [], file


def test_there_is_a_search_index_and_a_text_for_language_models(site: Path) -> None:
    assert "outcome-unknown" in (site / "search.json").read_text()
    assert "tutorial/your-api" in (site / "llms.txt").read_text()
    assert "Idempotency-Key" in (site / "llms-full.txt").read_text()


def test_the_address_of_problems_is_that_of_the_site() -> None:
    assert SETTINGS["site_url"] + "problems" == DOCS_URL


@pytest.mark.parametrize("base", [DOCS_URL, "https://docs.example.com/copy/problems"], ids=["default", "copy"])
@pytest.mark.parametrize("problem", find_all_problems(), ids=lambda one: one.anchor)
def test_the_type_and_the_link_of_an_answer_resolve_to_its_page(problem: Problem, base: str, site: Path) -> None:
    response = build_problem_response(problem, Codes(), base)
    type_uri = json.loads(response.body)["type"]
    assert dict(response.headers)["link"] == f'<{type_uri}>; rel="describedby"'
    published_at = base.removesuffix("problems")
    assert type_uri.startswith(published_at)
    page = (site / type_uri.removeprefix(published_at) / "index.html").read_text()
    assert f"{problem.anchor}: {problem.title}" in page
    assert build_page_address(problem.anchor) in page


@pytest.mark.parametrize(("value", "form"), [("", "address"), ("address", "address"), ("urn", "urn")])
def test_the_form_of_types_is_a_setting(value: str, form: str) -> None:
    assert read_type_form(value) == form


def test_a_form_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match="RETRYSAFE_PROBLEM_TYPES='URN': give 'address'"):
        read_type_form("URN")


def test_an_api_whose_clients_compare_the_urn_can_keep_it() -> None:
    code = "from retrysafe.webhooks.replies import wrong_method_response as it; print(it().body.decode(), it().headers)"
    environment = {**os.environ, "RETRYSAFE_PROBLEM_TYPES": "urn"}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert '"type": "urn:retrysafe:problem:verification"' in printed.stdout
    assert f"<{DOCS_URL}/verification/>" in printed.stdout


def test_every_error_has_a_page(site: Path) -> None:
    for each in find_all_errors():
        assert each.__name__ in (site / "problems" / each.anchor / "index.html").read_text()


def test_one_setting_points_all_links_of_a_process_at_another_copy() -> None:
    code = "from retrysafe.webhooks.replies import wrong_method_response as it; print(dict(it().headers)['link'])"
    environment = {**os.environ, "RETRYSAFE_DOCS_URL": "https://docs.example.com/p"}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == '<https://docs.example.com/p/verification/>; rel="describedby"'


def test_the_links_can_point_at_another_copy() -> None:
    problem = find_all_problems()[0]
    for base in ("https://docs.example.com/problems", "https://docs.example.com/problems/"):
        link = dict(build_problem_response(problem, Codes(), base).headers)["link"]
        assert link == f'<https://docs.example.com/problems/{problem.anchor}/>; rel="describedby"'
