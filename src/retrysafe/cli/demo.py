"""`retrysafe demo`: serve the payments API."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from retrysafe.errors import MissingDriver, UsageError

HOST = "127.0.0.1"


def add(commands: Any) -> None:
    parser = commands.add_parser("demo", help="serve a payments API that one can double-click on")
    parser.add_argument("--port", type=int, default=8000, help="where (8000)")
    parser.add_argument("--data", type=Path, default=Path("demo-data"), help="where its data stays (demo-data)")
    parser.add_argument("--reset", action="store_true", help="start over")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    if not 0 < given.port < 65536:
        raise UsageError(f"--port {given.port}: give a port from 1 to 65535")
    try:
        import uvicorn
    except ImportError as error:
        raise MissingDriver("demo", "uvicorn", "demo") from error
    from retrysafe.demo.app import make_app

    if given.reset:
        shutil.rmtree(given.data, ignore_errors=True)
    given.data.mkdir(parents=True, exist_ok=True)
    app = make_app(given.data)
    print(f"the demo is at http://{HOST}:{given.port}  (its data stays in {given.data}/; Ctrl-C stops it)", flush=True)
    uvicorn.run(app, host=HOST, port=given.port, log_level="warning")
    return 0
