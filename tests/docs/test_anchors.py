"""Every error and every problem has a line in docs/reference/errors.md and a page in docs/problems/."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from retrysafe.engine.problem_documents import Problem
from retrysafe.operations import endings
from retrysafe.web import problems
from retrysafe.web.problems import Codes, build_problem_response
from retrysafe.webhooks import replies

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "errors.md"
ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
LINK = re.compile(r"\]\(((?:[^)#:]+)?)#([^)]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def classes() -> dict[str, str]:
    """Every class with an anchor of its own, read and not imported: half of the package wants a framework."""
    return {
        node.name: anchor
        for file in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
        for anchor in map(_anchor, node.body)
        if anchor
    }


def _anchor(node: ast.stmt) -> str:
    if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Constant):
        return ""
    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
    return str(node.value.value) if ast.unparse(target) == "anchor" else ""


def all_problems() -> list[Problem]:
    others = (*vars(replies).values(), *vars(endings).values())
    return [*problems.ALL_PROBLEMS, *(each for each in others if isinstance(each, Problem))]


@pytest.fixture(scope="module")
def anchors() -> list[str]:
    return ANCHOR.findall(PAGE.read_text())


def test_every_class_of_error_is_explained(anchors: list[str]) -> None:
    found = classes()
    assert {"RetrySafeError", "LeaseLost", "StepFailed", "WritesRefused", "KeyTooOld"} <= set(found)
    assert {name for name, anchor in found.items() if anchor not in anchors} == set()


@pytest.mark.parametrize("problem", all_problems(), ids=lambda one: one.anchor)
def test_every_problem_leads_to_its_page(problem: Problem, anchors: list[str]) -> None:
    link = dict(build_problem_response(problem, Codes()).headers)["link"]
    address = re.fullmatch(r"<(.+)/problems/(.+)/>; rel=\"describedby\"", link)
    assert address is not None
    assert (ROOT / "docs" / "problems" / f"{address[2]}.md").exists()
    assert address[2] in anchors


def test_an_anchor_is_there_once(anchors: list[str]) -> None:
    assert sorted(set(anchors)) == sorted(anchors)


def test_links_to_a_line_of_a_page_find_it() -> None:
    dead = []
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target, anchor in LINK.findall(page.read_text()):
            text = (page.parent / target).read_text() if target else page.read_text()
            slugs = {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in HEADING.findall(text)}
            if anchor not in slugs | set(ANCHOR.findall(text)):
                dead.append(f"{page.relative_to(ROOT)} -> {target}#{anchor}")
    assert dead == []


def test_the_names_of_problems_are_those_of_the_page_on_http() -> None:
    named = set(re.findall(r"`([a-z-]+)`", (ROOT / "docs" / "reference" / "http.md").read_text()))
    assert {problem.anchor for problem in all_problems()} - named == set()
