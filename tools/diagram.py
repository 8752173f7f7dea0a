"""Draw the state machine from its table: docs/explanation/state-machine.md. `--check` fails if the page is stale."""

from __future__ import annotations

from tools import pages

from retrysafe.core.states import TRANSITIONS, State, Transition

PAGE = pages.ROOT / "docs" / "explanation" / "state-machine.md"

HEAD = """# The state machine

This page is generated from `src/retrysafe/core/states.py` by `make docs`; change the table there.

A record is one key's life. Open states (claimed, uncertain) never expire; settled ones (completed, released)
expire by comparison with the store's clock, and an expired record is as good as none.

"""


def mermaid(transitions: tuple[Transition, ...]) -> str:
    """The arrows, one line each; arrows between the same two states are drawn as one."""
    labels: dict[tuple[str, str], list[str]] = {}
    for arrow in transitions:
        ends = (_name(arrow.source), _name(arrow.target))
        labels.setdefault(ends, []).append(arrow.move)
    lines = [f"    {a} --> {b}: {', '.join(dict.fromkeys(moves))}" for (a, b), moves in labels.items()]
    return "```mermaid\nstateDiagram-v2\n" + "\n".join(lines) + "\n```\n"


def table(transitions: tuple[Transition, ...]) -> str:
    rows = [
        f"| {_word(arrow.source)} | {arrow.move} | {_word(arrow.target)} | {arrow.when} | {arrow.who} |"
        for arrow in transitions
    ]
    return "| from | move | to | when | who |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n"


def page() -> str:
    states = "\n".join(f"- **{state.value}**: {_doc(state)}" for state in State)
    return HEAD + mermaid(TRANSITIONS) + "\n" + states + "\n\n" + table(TRANSITIONS)


def _doc(state: State) -> str:
    """An enum member's own words stand under it in the source; there they can be read beside the code."""
    source = (PAGE.parents[2] / "src" / "retrysafe" / "core" / "states.py").read_text()
    after = source.split(f'{state.name} = "{state.value}"', 1)[1]
    return " ".join(after.split('"""')[1].split())


def _name(state: State | None) -> str:
    return "[*]" if state is None else state.value


def _word(state: State | None) -> str:
    return "–" if state is None else state.value


if __name__ == "__main__":
    pages.write(PAGE, page())
