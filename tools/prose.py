"""Check the prose of README and docs for words that make readers stumble. Exits with 1 and a list of places.

    python tools/prose.py             # everything (`make check`)
    python tools/prose.py FILE …      # these files

The rules are a list of our own: turns of phrase that we once wrote and that readers, many of them not native speakers,
had to read twice. Code blocks and `inline code` are not checked. No page is exempt but the decisions. CONTRIBUTING.md
says how to write.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

RULES = {
    r"\b(?:is|are|was|were|be|been) told\b": "say what the reader gets: 'the client gets 409'",
    r"\bwho is told\b": "say who gets what",
    r"\bboth colours\b|\bcolour\b": "'sync and async'",
    r"\bstands? where\b": "'how many are in each state'",
    r"\bwhoever\b|\bwhomever\b": "name the subject: 'the next worker', 'anyone who'",
    r"\ba person\b": "'an operator', 'somebody'",
    r"\bgo(?:es|ne)? on with\b": "'resumes', 'continues'",
    r"\b(?:it|operation|saga|work|worker|process) goes on\b": "'resumes', 'continues'",
    r"\bwhat becomes of\b": "'what happens to'",
    r"\bgo(?:es)? on (?:rightly|meanwhile|by itself|from there|again)\b": "'continues', 'keeps working'",
    r"\bwhom\b": "name the subject",
    r"\bnobody's word\b": "say what is not needed",
    r"\bin (?:the )?clear\b": "'unencrypted'",
    r"\b(?:is|are) worth\b": "say what to do",
    r"\banew\b": "'again'",
    r"\bthe house\b": "'the architecture', 'the code base'",
    r"\bcomes? by\b|\bcame by\b": "'runs', 'finds it'",
    r"\bhas no second time\b": "'must not run again'",
    r"\bmind your\b": "'be careful with'",
    r"\bas ever\b": "'as usual'",
    r"\bsurely\b": "'certainly'",
    r"\bof ours\b": "'our'",
    r"\bwho does not\b|\bwho cannot\b": "name the subject",
    r"\bsays? nothing of\b": "'does not say'",
    r"\bknows? nothing of\b": "'does not know'",
    r"\bcould be had\b": "'was available'",
    r"\blook(?:s|ed)? it over\b": "'check'",
    r"\bexactly[- ]once delivery\b": "delivery is at least once; the effect happens once",
    r"\b(?:easily|obviously|of course)\b": "leave it out",
    r"\bsome (?=\d+ (?:\w*[bs]\b|thousand|minutes|hours|times))": "'about'",
    r"\brightly\b": "'correctly'",
    r"\bin vain\b": "say what happens instead",
    r"\bnever meets?\b": "'are independent', 'does not see the other'",
    r"\b(?:is|are|stays?|stayed) away\b": "'cannot be reached'",
    r"\b(?:they|processes|servers|releases?|before) go(?:es)? on\b": "'keep working'",
    r"\bhears? of it\b|\bis heard of\b": "'gets the answer', 'no answer came'",
    r"\bstands? (?:under|below|on)\b": "'put it under', 'use'",
    r"\bfit for\b": "'safe for', 'ready for'",
    r"\bwants it\b": "'requires', 'needs it'",
    r"\bbeside other load\b": "'while other programs ran'",
    r"\brivals?\b": "'another caller', 'competing callers'",
    r"\bhonou?rs?\b": "'recognises', 'follows'",
    r"\bhardly does\b": "repeat the verb: 'hardly grows'",
    r"\bcomes? to an end\b": "'ends'",
    r"\bmean(?:s|t)? another thing\b": "'mean something else'",
    r"\bnone of (?:its|their) \w+ that (?:is|are) not\b": "say it without two negations: 'all of its runs are'",
    r"\bmakes? a \w+ step of\b": "'turn a step into'",
    r"\bread first and (?:write|writes) then\b": "'afterwards'",
    r"\bwaits? uncounted\b": "say what is not counted",
    r"\bsays? no\b": "'rejects', 'refuses'",
    r"\bstands? still\b": "'no longer grows'",
    r"\bbelongs? into\b": "'do it in', 'put it into'",
    r"\b(?:was|were) quicker\b": "'was first'",
    r"\bof no account\b": "'does not matter'",
    r"\bputs? a fence around\b|\bbehind the fence\b": "'protects': a fence is the attempt and its token",
    r"\banother person\b": "'another operator', 'somebody else'",
}
"""What not to write, and what to write instead."""

LONGEST_SENTENCE_WORDS = 50

CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\([^)]*\)")


class Finding(NamedTuple):
    file: Path
    line: int
    found: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.found!r}: {self.instead}"


def main(names: list[str]) -> int:
    files = [Path(name).resolve() for name in names] or list_pages()
    findings = [finding for file in files for finding in check(file)]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def list_pages() -> list[Path]:
    top = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")]
    pages = [*top, *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if not is_exempt(page)]


def is_exempt(page: Path) -> bool:
    return page.relative_to(ROOT).as_posix().startswith("docs/decisions/")  # a decision is history: it keeps its words


def check(file: Path) -> Iterator[Finding]:
    for number, text in read_prose(file.read_text()):
        for rule, instead in RULES.items():
            if found := re.search(rule, text, re.IGNORECASE):
                yield Finding(file, number, found[0], instead)
    yield from check_sentences(file)


def check_sentences(file: Path) -> Iterator[Finding]:
    for number, paragraph in read_paragraphs(file.read_text()):
        for sentence in re.split(r"(?<=[.!?])\s+|:\s+|;\s+", paragraph):
            words = len(sentence.split())
            if words > LONGEST_SENTENCE_WORDS:
                yield Finding(file, number, " ".join(sentence.split()[:6]) + " …", f"{words} words: make two sentences")


def read_prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines outside of code blocks, without inline code and the targets of links."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("    ", "<!--")):
            yield number, LINK.sub("]", CODE.sub("", line))


def read_paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Runs of prose lines that are no table, list item or heading, each with the number of its first line."""
    start, lines = 0, []
    for number, line in [*read_prose(text), (0, "")]:
        if line.strip() and not line.lstrip().startswith(("|", "#", "-", "*", ">", "[")):
            start, lines = start or number, [*lines, line]
        elif lines:
            yield start, " ".join(lines)
            start, lines = 0, []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
