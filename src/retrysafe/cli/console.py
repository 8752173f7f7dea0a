"""`retrysafe console`: the web console on this machine, with a login link that works once."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from retrysafe.cli.parsing import add_json
from retrysafe.cli.session import check_file, find_actor, quiet_drivers, read_app
from retrysafe.cli.settings import read_setting, require_url
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.operators.session import open_on_safe

DEFAULT_PORT = 8765
REQUEST_FILE = "retrysafe-requests.jsonl"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "console",
        help="a web console for operators, on this machine",
        description="Serves the console on 127.0.0.1 and prints a login link that works once. It is read-only unless "
        "--actions is given. Give the URL of a store, or your application (MODULE:SAFE or --app): only the application "
        "draws operations, resumes them, and reads what is encrypted. docs/howto/console.md says how to mount it in "
        "an application instead.",
        takes_url=True,
        examples=("retrysafe console sqlite:///app.db", "retrysafe console --app myapp:safe --actions"),
    )
    parser.add_argument("safe", metavar="URL or MODULE:SAFE", nargs="?", help="the store, or your RetrySafe")
    parser.add_argument("--namespace", help="the application (default: the setting, else 'default')")
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help=f"port to listen on ({DEFAULT_PORT}; 0: a free one)"
    )
    parser.add_argument("--actions", action="store_true", help="allow actions; without this it only shows")
    parser.add_argument("--by", metavar="NAME", help="who you are, for audit rows (the user of this machine)")
    parser.add_argument(
        "--census", metavar="FILE", action="append", default=[], help="a census of key usage for the page Rollout"
    )
    parser.add_argument(
        "--requests",
        metavar="FILE",
        default=REQUEST_FILE,
        help=f"the file of a RequestLog, for developers ({REQUEST_FILE})",
    )
    parser.add_argument(
        "--trace-url", default="", metavar="URL", help="an address with {trace_id}, for links to traces"
    )
    add_json(parser, "print the link as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.port < 65536:
        raise UsageError(f"--port {args.port}: give a port from 0 to 65535")
    from retrysafe.console.access import Operator
    from retrysafe.console.console import Console
    from retrysafe.console.loopback import HOST, LOGIN_PATH, LoopbackApp, OneTimeLogin, open_server

    with open_safe(args) as safe:
        login = OneTimeLogin(Operator(find_actor(args)))
        console = Console(
            safe,
            authenticate=login.authenticate,
            actions=args.actions,
            census=args.census,
            request_log=args.requests,
            trace_url=args.trace_url,
        )
        open_on_safe(safe).read_time()  # a store that does not answer is said here, not on every page
        with open_server(LoopbackApp(console, login), args.port) as server:
            address = f"http://{HOST}:{server.server_port}"
            link = f"{address}{LOGIN_PATH}?token={login.new_token()}"
            print_link(args, safe, address, link)
            server.serve_forever(poll_interval=0.5)
    return 0


def print_link(args: argparse.Namespace, safe: RetrySafe, address: str, link: str) -> None:
    if args.json:
        from retrysafe.cli.output import print_json

        print_json({"address": address, "link": link, "actions": args.actions})
        sys.stdout.flush()
        return
    what = "with actions" if args.actions else "read-only (--actions allows more)"
    print(f"the console of {safe!r}, {what}; Ctrl-C stops it", flush=True)
    print(f"open this link; it works once: {link}", flush=True)


def open_safe(args: argparse.Namespace) -> RetrySafe:
    app = args.safe or read_app(args)
    if app:
        from retrysafe.cli.import_object import load_safe  # the application's own imports may take long

        return load_safe(app)
    url = require_url(args)
    check_file(url)
    quiet_drivers()
    return RetrySafe(url, namespace=read_setting(args, "namespace").value)
