"""`retrysafe demo`: serve the demo. A file of its own, like every command group."""

from __future__ import annotations

import argparse
import shutil
import socket
from pathlib import Path
from typing import Any

from retrysafe.errors import MissingDriver, UsageError

NEEDED = ("uvicorn", "fastapi", "httpx", "jinja2")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="serve a demo payments API with a page for your browser",
        examples=(
            "retrysafe demo --port 8080",
            "retrysafe demo --store postgresql://localhost/demo",
            "retrysafe demo --reset",
        ),
    )
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (8000)")
    parser.add_argument("--data", type=Path, default=Path("demo-data"), help="folder for its data (demo-data)")
    parser.add_argument("--store", metavar="URL", help="where keys are kept (a SQLite file in the folder)")
    parser.add_argument("--reset", action="store_true", help="delete the folder first")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not 0 < args.port < 65536:
        raise UsageError(f"--port {args.port}: give a port from 1 to 65535")
    for name in NEEDED:
        try:
            __import__(name)
        except ImportError as error:
            raise MissingDriver("demo", name, "demo", "`retrysafe demo`") from error
    from retrysafe.demo.front import bind_port

    with bind_port(args.port) as listener:  # before anything is deleted or started
        return serve_on(listener, args)


def serve_on(listener: socket.socket, args: argparse.Namespace) -> int:
    from retrysafe.demo.front import serve

    if args.reset:
        shutil.rmtree(args.data, ignore_errors=True)
    args.data.mkdir(parents=True, exist_ok=True)
    store = args.store or f"sqlite:///{args.data.resolve() / 'shop.db'}"
    prepare_store(store)
    return serve(args.data, store, listener)


def prepare_store(url: str) -> None:
    """Create the tables here, so that a wrong URL is reported at once and not by a process of the demo."""
    from retrysafe.engine.safe import RetrySafe

    if url.startswith("memory:"):
        raise UsageError(
            "--store memory://: the demo kills its server, and memory would die with it; give a real store"
        )
    safe = RetrySafe(url)
    try:
        safe.migrate()
    finally:
        safe.close()
