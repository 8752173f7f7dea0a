"""An operation as a Mermaid flowchart: its steps in the order of declaration, each with its undo and its `find`.

The body is ordinary Python and decides at run time which steps it calls. The drawing shows all steps that it can call.
"""

from __future__ import annotations

import re
from typing import Protocol

from retrysafe.operations.steps import Step
from retrysafe.policy import DAY


class Diagrammable(Protocol):
    """The part of an operation that is drawn."""

    @property
    def target(self) -> str: ...
    @property
    def steps(self) -> dict[str, Step]: ...


def draw_diagram(operation: Diagrammable) -> str:
    """Boxes are local steps (one transaction each). Rounded boxes are calls to other systems."""
    lines = ["flowchart TD", f'    start(["{escape_text(operation.target)}"])']
    before = "start"
    for number, step in enumerate(operation.steps.values(), 1):
        name = f"s{number}"
        lines.append(f"    {name}{format_node(step)}")
        lines.append(f"    {before} --> {name}")
        if step.undo is not None:
            lines.append(f'    {name} -. "undo" .-> u{number}["{escape_text(step.undo.__name__)}"]')
        if step.find is not None:
            lines.append(f'    {name} -. "ask" .-> f{number}(["{escape_text(step.find.__name__)}"])')
        before = name
    lines += ['    done(["answer"])', f"    {before} --> done"]
    once = [f"s{number}" for number, step in enumerate(operation.steps.values(), 1) if not step.repeatable]
    if once:
        lines += ["    classDef once stroke-width:3px,stroke-dasharray:4", f"    class {','.join(once)} once"]
    return "\n".join(lines)


def format_node(step: Step) -> str:
    words = f"{escape_text(step.name)}<br/>{describe_step(step)}"
    return f'["{words}"]' if step.kind == "local" else f'("{words}")'


def describe_step(step: Step) -> str:
    if step.kind == "local":
        return "local: one transaction"
    if not step.repeatable:
        return f"foreign, never repeated: {step.timeout:g} s"
    life = f"{step.key_life / DAY:g} d" if step.key_life >= DAY else f"{step.key_life:g} s"
    return f"foreign: {step.timeout:g} s, key lives {life}"


def escape_text(name: str) -> str:
    """A name with all special characters as Mermaid entities, so that it cannot end its quotes."""
    return re.sub(r"[^\w .@:-]", lambda match: f"#{ord(match.group())};", name)
