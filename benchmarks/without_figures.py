"""A copy of the library without its figures, for `python -m benchmarks.figures`.

Every statement that counts or measures is taken out of the source, with the arguments it computes: the calls of
`Figures`, the events (nobody listens to them here), and what a route and a task carry only for their labels. So the
difference between the two copies is the whole cost.

Both copies are written anew from their syntax trees. A copy that was and one that was not would differ in their line
tables and in the order of their constants, which alone moves the count of a request by about half a per cent.
"""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import retrysafe

COUNTING = frozenset(
    (
        "count", "count_begin", "end_execution", "end_completed", "observe_store", "observe_store_error",
        "sort_store_times", "count_request", "emit", "emit_grant",
    )
)  # fmt: skip
OWNERS = frozenset(("figures", "_figures", "events", "_events"))
LABELS = frozenset(("series",))
COLLECTED = frozenset(("times", "granted", "replayed"))
"""Lists that figures are appended to."""
FIGURES = frozenset(("figures",))
"""A variable for them."""
ASKED = frozenset(("_taps", "heard", "max_unsorted_times"))
"""Asked only by what counts: the whole statement is taken out."""
FILES = (
    "engine/aperform.py", "engine/perform.py", "engine/guard.py", "engine/safe.py", "transactions/flow.py",
    "operations/flow.py", "operations/run.py", "operations/submission.py",
    "web/exchange.py", "web/settlement.py", "web/key_usage.py", "web/routes.py", "web/transaction_flow.py",
    "web/claim_flows.py",
)  # fmt: skip


class TakeOut(ast.NodeTransformer):
    """Takes the statements out, and counts them."""

    def __init__(self) -> None:
        self.taken = 0

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if names_counting(node.value):
            self.taken += 1
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if isinstance(node.value, ast.Call) and name_of(node.value) == "begin_execution":
            self.taken += 1
            node.value = ast.Constant(0.0)
            return node
        if all(is_label(target) or getattr(target, "id", "") in COLLECTED | FIGURES for target in node.targets):
            self.taken += 1
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        if any(isinstance(each, ast.Attribute) and each.attr in ASKED for each in ast.walk(node.test)):
            self.taken += 1
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> ast.AST:
        self.generic_visit(node)
        bodies = (node.body, *(handler.body for handler in node.handlers))
        if all(isinstance(each, ast.Pass) for body in bodies for each in body) and not node.finalbody:
            return ast.copy_location(ast.Pass(), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords = [keyword for keyword in node.keywords if keyword.arg not in LABELS]
        node.args = [given for given in node.args if not names_series(given)]
        if isinstance(node.func, ast.Attribute) and is_census(node.func.value):
            self.taken += 1  # the census is no figure: it stays, and is called as it was before there were figures
            del node.args[3]
        return node


def names_series(node: ast.expr) -> bool:
    """`series or …`, `self.series` and `self._unlisted[method]`, given to what carries it."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "_unlisted"
    return is_label(node.values[0]) if isinstance(node, ast.BoolOp) else is_label(node)


def is_label(node: ast.expr) -> bool:
    return name_in(node) in LABELS


def is_census(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "census"


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def name_in(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def names_counting(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and name_of(node) == "append" and isinstance(node.func, ast.Attribute):
        return name_in(node.func.value) in COLLECTED
    if not isinstance(node, ast.Call) or name_of(node) not in COUNTING:
        return False
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    return (isinstance(owner, ast.Attribute) and owner.attr in OWNERS) or (
        isinstance(owner, ast.Name) and owner.id in OWNERS
    )


def copy_library(folder: Path) -> None:
    source = Path(retrysafe.__file__).parent
    shutil.copytree(source, folder / "retrysafe", ignore=shutil.ignore_patterns("__pycache__"))


def write_anew(folder: Path, transformer: ast.NodeTransformer) -> None:
    """Write the files of the copy in `folder` from their syntax trees, as `transformer` leaves them."""
    for name in FILES:
        path = folder / "retrysafe" / name
        path.write_text(ast.unparse(ast.fix_missing_locations(transformer.visit(ast.parse(path.read_text())))))


def take_figures_out(folder: Path) -> int:
    """Take the statements out of the copy in `folder`; returns how many they were."""
    transformer = TakeOut()
    write_anew(folder, transformer)
    return transformer.taken
