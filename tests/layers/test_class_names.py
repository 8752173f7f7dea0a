"""One word means one thing: a class name is defined once in the library (CONTRIBUTING.md, names)."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.layers.test_layers import ROOT

TWINS = {
    "Consumer": "one for each broker, as `retrysafe.consumers.<broker>.Consumer`",
    "IdempotencyMiddleware": "one for each framework, as `retrysafe.<framework>.IdempotencyMiddleware`",
    "Refusal": "the exception of each framework, private to its adapter",
    "Migration": "Django's own name for it",
    "ManagedConnection": "sync and async",
    "ManagedSSLConnection": "sync and async",
    "Primary": "sync and async",
    "SentinelPool": "sync and async",
}
"""Names that are defined more than once, and why."""


def test_a_class_name_is_defined_once() -> None:
    found = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(ROOT)))
    several = {name: files for name, files in found.items() if len(files) > 1}
    assert {name: files for name, files in several.items() if name not in TWINS} == {}
    assert [name for name in TWINS if name not in several] == []
