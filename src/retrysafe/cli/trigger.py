"""`retrysafe trigger retry-storm|crash|mismatch`: bring about, on purpose, what alerts should see.

`retry-storm` and `mismatch` send requests to an API. `crash` claims a key in a store and never finishes it, as a killed
process would: the key becomes uncertain, and the command prints how to resolve it."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from retrysafe.cli import exits
from retrysafe.cli.addresses import FAILURES, check_address, explain_failure
from retrysafe.cli.output import format_count, print_json, print_note
from retrysafe.cli.parsing import add_json, add_reason
from retrysafe.cli.session import make_entry, open_session
from retrysafe.core.fingerprint import fingerprint_body
from retrysafe.core.keys import record_id
from retrysafe.core.ops import Claim
from retrysafe.core.problem_names import problem_name
from retrysafe.core.times import DAY_MICROS, SECOND_MICROS
from retrysafe.errors import UsageError
from retrysafe.operators.follow_up import build_command
from retrysafe.operators.name_check import describe_unknown_name

TRIGGER_SCOPE = "retrysafe-trigger"
TRIGGER_TARGET = "TRIGGER crash"
REQUEST_TIMEOUT_SECONDS = 30.0
MAX_PROBLEM_BYTES = 10_000
_PROBLEM_NAME = re.compile("[a-z][a-z-]{1,40}")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "trigger",
        help="bring about what your alerts should see",
        examples=("retrysafe trigger retry-storm http://127.0.0.1:8000/payments --body '{\"amount\": 1}'",),
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=type(parser))
    storm = verbs.add_parser(
        "retry-storm",
        help="send one request many times with one key, at once",
        examples=("retrysafe trigger retry-storm http://127.0.0.1:8000/payments --times 50 --body '{\"amount\": 1}'",),
    )
    _add_request(storm)
    storm.add_argument("--times", type=int, default=20, help="how many requests (20)")
    storm.add_argument("--at-once", type=int, default=10, metavar="N", help="how many at the same time (10)")
    storm.set_defaults(run=run_storm)
    mismatch = verbs.add_parser(
        "mismatch",
        help="send one key with two different requests",
        examples=("retrysafe trigger mismatch http://127.0.0.1:8000/payments --body '{\"amount\": 1}'",),
    )
    _add_request(mismatch)
    mismatch.add_argument("--times", type=int, default=5, help="how many requests with another body (5)")
    mismatch.set_defaults(run=run_mismatch)
    crash = verbs.add_parser(
        "crash",
        help="leave a key behind as a killed process would",
        description="Claims a key of the scope retrysafe-trigger with a short lease, and never finishes it.",
        takes_url=True,
        examples=("retrysafe trigger crash sqlite:///app.db --because 'a look at our alerts'",),
    )
    crash.add_argument("--namespace", help="the application (default: the setting, else 'default')")
    crash.add_argument("--lease", type=float, default=1.0, metavar="S", help="seconds until the lease lapses (1)")
    add_reason(crash)
    add_json(crash, "print one JSON object")
    crash.set_defaults(run=run_crash)


def _add_request(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("api", metavar="URL", help="the address of a route that takes keys")
    parser.add_argument("--body", default="{}", help="the JSON body ({})")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="another header")
    parser.add_argument("--method", default="POST", help="the method (POST)")
    add_json(parser, "print one JSON object")


def run_storm(args: argparse.Namespace) -> int:
    if args.times < 1 or args.at_once < 1:
        raise UsageError(f"--times {args.times} --at-once {args.at_once}: give 1 or more")
    check_request(args)
    key = f"storm-{os.urandom(8).hex()}"
    with ThreadPoolExecutor(args.at_once) as pool:
        answers = list(pool.map(lambda _: send(args, key, args.body), range(args.times)))
    return report(args, "retry-storm", key, answers)


def run_mismatch(args: argparse.Namespace) -> int:
    if args.times < 1:
        raise UsageError(f"--times {args.times}: give 1 or more")
    check_request(args)
    key = f"mismatch-{os.urandom(8).hex()}"
    bodies = [args.body, *(f'{{"retrysafe_trigger": {number}}}' for number in range(args.times))]
    return report(args, "mismatch", key, [send(args, key, body) for body in bodies])


class Reply(NamedTuple):
    """What became of a request: its status, with `replayed` for a replay, or the name of an error and its reason."""

    told: str
    why: str = ""


def check_request(args: argparse.Namespace) -> None:
    """Raise UsageError for a request that cannot be sent."""
    check_address(args.api)
    for each in args.header:
        read_header(each)
    if not _TOKEN.fullmatch(args.method):
        raise UsageError(f"--method {args.method!r}: write one word, like POST")


def send(args: argparse.Namespace, key: str, body: str) -> Reply:
    """Send one request."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    headers = {"content-type": "application/json", "idempotency-key": f'"{key}"'}
    headers |= dict(read_header(each) for each in args.header)
    request = Request(args.api, body.encode(), headers, method=args.method)  # noqa: S310  # the scheme was checked
    try:
        with urlopen(request, timeout=REQUEST_TIMEOUT_SECONDS) as answer:  # noqa: S310
            replayed = " replayed" if answer.headers.get("idempotent-replayed") == "true" else ""
            return Reply(f"{answer.status}{replayed}")
    except HTTPError as error:
        replayed = " replayed" if error.headers.get("idempotent-replayed") == "true" else ""
        return Reply(f"{error.code}{read_problem(error.read(MAX_PROBLEM_BYTES))}{replayed}")
    except FAILURES as error:
        return Reply(type(error).__name__, explain_failure(error))


def read_problem(body: bytes) -> str:
    """The name of our problem with a space before it: 422 is also what frameworks say of an invalid body. Pure."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    kind = found.get("type") if isinstance(found, dict) else None
    name = problem_name(kind) if isinstance(kind, str) else ""
    return f" {name}" if _PROBLEM_NAME.fullmatch(name) else ""


def read_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageError(f"--header {text!r}: write 'Name: value'")
    if not _TOKEN.fullmatch(name.strip()) or not _VALUE.fullmatch(value.strip()):
        raise UsageError(f"--header {text!r}: HTTP has no such header; a value is one line of Latin letters and signs")
    return name.strip(), value.strip()


def report(args: argparse.Namespace, what: str, key: str, replies: list[Reply]) -> int:
    answers = [reply.told for reply in replies]
    counted = Counter(answers)
    if args.json:
        print_json({"trigger": what, "key": key, "requests": len(answers), "answers": dict(counted)})
    else:
        requests = format_count(len(answers), "request")
        print(f"{requests} with key {key}: " + ", ".join(f"{n} × {each}" for each, n in counted.items()))
    if not any(answer[:1].isdigit() for answer in answers):
        raise exits.OutOfReach(f"{args.api} did not answer: {next(reply.why for reply in replies)}")
    if was_seen(what, answers):
        return exits.DONE
    wanted = "was answered with 422 mismatch" if what == "mismatch" else "was accepted"
    print_note(
        f"no request {wanted}, so your alerts saw nothing ({', '.join(counted)}): the route refused the requests, or "
        "it takes no keys; give what it needs with --header and --body"
    )
    return exits.REFUSED


def was_seen(what: str, answers: list[str]) -> bool:
    """Whether the drill brought about what it is for. Pure."""
    if what == "mismatch":
        return any(answer.startswith("422 mismatch") for answer in answers)
    return any(answer.startswith("2") for answer in answers)


def run_crash(args: argparse.Namespace) -> int:
    if not args.lease > 0:
        raise UsageError(f"--lease {args.lease}: give a number of seconds above zero")
    with open_session(args) as session:
        key, drawn = f"crash-{os.urandom(8).hex()}", os.urandom(32)
        found = record_id("http", session.namespace, TRIGGER_SCOPE, key)
        claim = Claim(
            found,
            session.namespace,
            "http",
            TRIGGER_SCOPE,
            key,
            TRIGGER_TARGET,
            fingerprint_body("application/json", [b"{}"]),
            drawn[:16],
            drawn[16:],
            round(args.lease * SECOND_MICROS),
            DAY_MICROS,
            "uncertain",
        )
        unknown = describe_unknown_name(session, session.namespace)
        with session.act(make_entry(args, "trigger crash", (found.hex(),))) as audit:
            session.execute(claim)
            audit.result = {"lease_seconds": args.lease}
        words = ("keys", "resolve", key, "--scope", TRIGGER_SCOPE)
        resolve = build_command(*words, namespace=session.namespace, then="--did-not-happen")
    if unknown:
        print_note(f"{unknown}. If nobody watches this namespace, no alert will fire")
    if args.json:
        print_json({"trigger": "crash", "key": key, "scope": TRIGGER_SCOPE, "id": found.hex(), "resolve": resolve})
    else:
        print(f"{key} was claimed and left; in {args.lease:g} s it is uncertain")
        print_note(f"hint: {resolve} --because 'it was a drill'")
    return exits.DONE
