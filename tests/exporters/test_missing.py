"""An exporter whose package is not installed says which extra to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules[{module!r}] = None  # as if it were not installed
try:
    import retrysafe.{name}
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(("name", "module"), [("otel", "opentelemetry"), ("prometheus", "prometheus_client")])
def test_the_message_names_the_extra(name: str, module: str) -> None:
    program = PROGRAM.format(name=name, module=module)
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said.startswith("MissingDriver")
    assert f"retrysafe.{name} needs the module {module!r}" in said
    assert f"pip install 'retrysafe[{name}]'" in said
