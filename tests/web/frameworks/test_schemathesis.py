"""The FastAPI example against its own OpenAPI document, on a real server: the document describes every answer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.servers.ports import free_port

ROOT = Path(__file__).parents[3]
DEADLINE = 60.0
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]

pytestmark = pytest.mark.xdist_group("schemathesis")  # one worker starts the example, once


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("example"), free_port()
    command = [sys.executable, "-m", "uvicorn", "examples.fastapi_payments.app:app", "--port", str(port)]
    env = {**os.environ, "RETRYSAFE_URL": f"sqlite:///{folder / 'keys.db'}"}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)
    try:
        wait_for(f"http://127.0.0.1:{port}", server, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(DEADLINE)


def wait_for(base: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline and server.poll() is None:
        try:
            httpx.get(f"{base}/openapi.json")
            return
        except httpx.TransportError:
            time.sleep(0.02)
    raise AssertionError(f"the example does not answer\n{log.read_text()}")


@pytest.fixture(scope="module")
def operations(base: str) -> dict[str, Any]:
    found = schemathesis.openapi.from_url(f"{base}/openapi.json").get_all_operations()
    return {one.ok().label: one.ok() for one in found}


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
@pytest.mark.parametrize("label", ["POST /payments", "POST /orders", "GET /payments/{id}", "GET /provider/charges"])
def test_whatever_is_sent_the_answer_is_documented(operations: dict[str, Any], label: str, mode: Any) -> None:
    @given(st.data())
    @settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def send(data: st.DataObject) -> None:
        case = data.draw(operations[label].as_strategy(generation_mode=mode))
        case.call_and_validate(headers={"Authorization": "Bearer alice-token"}, checks=CHECKS)

    if label == "GET /provider/charges" and mode is GenerationMode.NEGATIVE:
        return  # it has no input that could be invalid
    send()


def test_every_operation_is_tried(operations: dict[str, Any]) -> None:
    assert set(operations) == {"POST /payments", "POST /orders", "GET /payments/{id}", "GET /provider/charges"}
