"""A process of one release, old or new: reads a command per line, answers with a line (wire.py).

    PYTHONPATH=<the release> python tests/releases/child.py

{"do": NAME, "url": …, "sealed": …, "namespace": …, and what the command takes}. With `"mortal": true` the command is
carried out in a fork that opens its own store and may die; the answer then says how it ended. Nothing is opened in a
process that forks.

It stands on what every release has; what a later one adds to an operation is left out where it is not known.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import deployments
import shop
import wire
from orders import Order

import retrysafe
from retrysafe import Answer, KeyRing, RetrySafe, derive
from retrysafe.core import jobs, ops
from retrysafe.core.judge import judge
from retrysafe.core.records import Fence, Fingerprint
from retrysafe.core.states import State

RING = {"2026-11": b"k" * 32}

_open: dict[tuple[str, bool, str], RetrySafe] = {}


def opened(url: str, sealed: bool, tx: Any = None, traceparent: str = "") -> RetrySafe:
    found = _open.get((url, sealed, traceparent))
    if found is None:
        found = RetrySafe(url, keyring=KeyRing(RING) if sealed else None, tx=transactions(tx))
        if traceparent and hasattr(found, "add_trace"):  # as `retrysafe.otel.instrument` does
            found.add_trace(lambda event: None, lambda: traceparent)
        _open[url, sealed, traceparent] = found
    return found


def transactions(tx: Any) -> Any:
    """How the shop opens its own: a file's path, or a connection per transaction."""
    if tx is None or tx["kind"] == "sqlite":
        return None if tx is None else tx["at"]
    if tx["kind"] == "postgres":
        import psycopg

        return lambda: psycopg.connect(tx["at"])
    import pymysql

    from retrysafe.stores.mysql.dialect import parse_url

    return lambda: pymysql.connect(**parse_url(tx["at"]).connect)


# Operations of the store ----------------------------------------------------------------------------------------------


def operation(given: dict[str, Any]) -> Any:
    """The operation that a dictionary names."""
    kind = getattr(ops, given["op"], None) or getattr(jobs, given["op"])
    fields = {name: READ.get(name, lambda value: value)(value) for name, value in given.items() if name != "op"}
    return kind(**{name: value for name, value in fields.items() if name in kind.__slots__})


def answer(value: Any) -> Answer | None:
    return None if value is None else Answer(value["status"], value["body"], value["headers"], value.get("gone", ""))


READ: dict[str, Any] = {
    "fingerprint": Fingerprint.parse,
    "fence": lambda value: Fence(*value),
    "answer": answer,
    "state": lambda value: None if value is None else State(value),
    "jobs": lambda value: tuple(jobs.Job(*each) for each in value),
    "ids": tuple,
}


def do_ops(safe: RetrySafe, given: dict[str, Any]) -> list[Any]:
    """Each in turn. A claim's reply carries its outcome."""
    replies: list[Any] = []
    for op in map(operation, given["ops"]):
        try:
            reply = safe.execute(op)
        except Exception as error:
            replies.append(shop.said(error))
            continue
        told = wire.plain(reply)
        if isinstance(op, ops.Claim):
            told["outcome"] = type(judge(op, reply)).__name__
        replies.append(told)
    return replies


def do_all(safe: RetrySafe, given: dict[str, Any]) -> list[Any]:
    """Every record there is, in the order of their ids."""
    found, cursor = {}, ""
    while True:
        page = safe.execute(ops.List(cursor=cursor, limit=50, now=given.get("now")))
        found.update({record.id: record for record in page.records})
        cursor = page.cursor
        if not cursor:
            return [wire.plain(found[each]) for each in sorted(found)]


# The shop, and the worker ---------------------------------------------------------------------------------------------


def shop_of(safe: RetrySafe, given: dict[str, Any]) -> shop.Shop:
    made: shop.Shop | None = getattr(safe, "shop_of_test", None)
    if made is None:
        made = safe.shop_of_test = shop.Shop(safe, given["ledger"], given.get("tx"))  # type: ignore[attr-defined]
    made.die, made.fail = given.get("die", ""), given.get("fail", "")
    return made


def do_call(safe: RetrySafe, given: dict[str, Any]) -> Any:
    """One call of one kind: its result, or its error."""
    here = shop_of(safe, given)
    more = {"item": given["item"]} if "item" in given else {}
    try:
        return {"result": wire.plain(getattr(here, given["kind"])(given["key"], given["cents"], **more))}
    except Exception as error:
        return shop.said(error)


def do_deployed(safe: RetrySafe, given: dict[str, Any]) -> Any:
    """The same shop after a deployment of its own: `change` says of which. Mortal: one declaration a process."""
    here = shop_of(safe, given)
    try:
        return {"result": wire.plain(deployments.call(here, given["change"], given["key"]))}
    except Exception as error:
        return shop.said(error)


def do_request(safe: RetrySafe, given: dict[str, Any]) -> Any:
    return wire.plain(shop_of(safe, given).request(given["key"], given["body"], given["content_type"]))


def do_derive(safe: RetrySafe, given: dict[str, Any]) -> list[str]:
    return [derive(*each, part=part, undo=undo) for *each, part, undo in given["keys"]]


def do_submit(safe: RetrySafe, given: dict[str, Any]) -> Any:
    here = shop_of(safe, given)
    try:
        made = here.later(Order(given["item"], given["cents"]), key=given["key"])
    except Exception as error:
        return shop.said(error)
    return {"result": wire.plain(made) if isinstance(made, Answer) else "accepted"}


def do_race(safe: RetrySafe, given: dict[str, Any]) -> list[Any]:
    """Every key ends with a result, run here or there."""
    here = shop_of(safe, given)
    return (here.amany if given["colour"] == "async" else here.many)(given["keys"], given["cents"])


def do_publish(safe: RetrySafe, given: dict[str, Any]) -> Any:
    from retrysafe.worker.enqueuer import Enqueuer

    seen: list[Any] = []
    done = Enqueuer(safe, {"*": seen.append}).run_once()
    return {"published": done.published, "jobs": wire.plain(seen)}


def do_work(safe: RetrySafe, given: dict[str, Any]) -> Any:
    from retrysafe.worker.completer import Completer

    shop_of(safe, given)
    return wire.plain(Completer(safe, grace=0, backoff=lambda attempt: 0.0).run_once())


def do_migrate(safe: RetrySafe, given: dict[str, Any]) -> Any:
    return safe.migrate()


def do_close(safe: RetrySafe, given: dict[str, Any]) -> None:
    for key in [key for key in _open if key[0] == given["url"]]:
        _open.pop(key).close()


DO = {name.removeprefix("do_"): each for name, each in list(globals().items()) if name.startswith("do_")}


# The process ----------------------------------------------------------------------------------------------------------


def carried_out(given: dict[str, Any]) -> Any:
    if given["do"] == "hello":
        return {"file": retrysafe.__file__, "version": retrysafe.__version__}
    safe = opened(given["url"], given.get("sealed", False), given.get("tx"), given.get("traceparent", ""))
    return DO[given["do"]](safe, given)


def answered(given: dict[str, Any], out: int) -> None:
    try:
        told = {"ok": carried_out(given)}
    except BaseException as error:
        told = {"failed": shop.said(error)}
    os.write(out, (wire.dump(told) + "\n").encode())


def in_a_fork(given: dict[str, Any]) -> dict[str, Any]:
    """Carry it out in a process of its own: what it said, and by what signal it ended (0: by itself)."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        answered(given, theirs)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as said:
        text = said.read()
    _, status = os.waitpid(pid, 0)
    return {"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, "said": wire.load(text) if text else None}


def main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints is not an answer
    for line in sys.stdin:
        given = wire.load(line)
        if given.get("mortal"):
            os.write(out, (wire.dump({"ok": in_a_fork(given)}) + "\n").encode())
        else:
            answered(given, out)


if __name__ == "__main__":
    main()
