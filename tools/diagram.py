"""Write docs/explanation/state-machine.md from the table in core/states.py. `--check` fails if the page is stale."""

from __future__ import annotations

from tools import pages

from retrysafe.core.states import TRANSITIONS, State, Transition

PAGE = pages.ROOT / "docs" / "explanation" / "state-machine.md"

HEAD = """# The state machine

This page is generated from `src/retrysafe/core/states.py` by `make pages`; change the table there.

A record describes one key. Open states (claimed, uncertain) never expire. Settled states (completed, released) expire by comparison
with the store's clock, and an expired record counts as absent.

"""


def draw_mermaid(transitions: tuple[Transition, ...]) -> str:
    """The transitions as a Mermaid diagram. Transitions between the same two states are one arrow."""
    labels: dict[tuple[str, str], list[str]] = {}
    for arrow in transitions:
        ends = (_format_node(arrow.source), _format_node(arrow.target))
        labels.setdefault(ends, []).append(arrow.move)
    lines = [f"    {a} --> {b}: {', '.join(dict.fromkeys(moves))}" for (a, b), moves in labels.items()]
    return "```mermaid\nstateDiagram-v2\n" + "\n".join(lines) + "\n```\n"


def build_table(transitions: tuple[Transition, ...]) -> str:
    rows = [
        f"| {_format_cell(arrow.source)} | {arrow.move} | {_format_cell(arrow.target)} | {arrow.when} | {arrow.who} |"
        for arrow in transitions
    ]
    return "| from | move | to | when | who |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n"


def build_page() -> str:
    states = "\n".join(f"- **{state.value}**: {_read_docstring(state)}" for state in State)
    return HEAD + draw_mermaid(TRANSITIONS) + "\n" + states + "\n\n" + build_table(TRANSITIONS)


def _read_docstring(state: State) -> str:
    """The docstring below an enum member. Python does not keep it, so it is read from the source."""
    source = (PAGE.parents[2] / "src" / "retrysafe" / "core" / "states.py").read_text()
    after = source.split(f'{state.name} = "{state.value}"', 1)[1]
    return " ".join(after.split('"""')[1].split())


def _format_node(state: State | None) -> str:
    return "[*]" if state is None else state.value


def _format_cell(state: State | None) -> str:
    return "–" if state is None else state.value


if __name__ == "__main__":
    pages.write_page(PAGE, build_page())
