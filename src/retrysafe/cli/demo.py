"""`retrysafe demo`: serve the demo application. A file of its own, like every command group."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from retrysafe.errors import MissingDriver, UsageError

HOST = "127.0.0.1"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="serve a demo payments API with a page for your browser",
        examples=("retrysafe demo --port 8080", "retrysafe demo --reset"),
    )
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (8000)")
    parser.add_argument("--data", type=Path, default=Path("demo-data"), help="folder for its data (demo-data)")
    parser.add_argument("--reset", action="store_true", help="delete its data first")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not 0 < args.port < 65536:
        raise UsageError(f"--port {args.port}: give a port from 1 to 65535")
    try:
        import uvicorn
    except ImportError as error:
        raise MissingDriver("demo", "uvicorn", "demo", "`retrysafe demo`") from error
    from retrysafe.demo.app import make_app

    if args.reset:
        shutil.rmtree(args.data, ignore_errors=True)
    args.data.mkdir(parents=True, exist_ok=True)
    app = make_app(args.data)
    print(f"the demo is at http://{HOST}:{args.port}  (its data is in {args.data}/; Ctrl-C stops it)", flush=True)
    uvicorn.run(app, host=HOST, port=args.port, log_level="warning")
    return 0
