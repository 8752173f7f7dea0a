"""Test the contract suite: break one rule of the state machine at a time, and at least one contract test must fail.

A rule without a failing test has no test. Each ablation changes one place of core/moves.py, gives the result to
a memory store, and runs the contract functions on it until one fails.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from types import ModuleType

import pytest

from retrysafe.core import moves
from retrysafe.stores import memory
from retrysafe.testing import Do

TOPICS = ("claim", "resume", "fence", "late", "settle", "expiry", "identity", "listing", "many", "forget")

FENCE = "found is not None and owns(found, op.fence)"
NEXT_ATTEMPT = "attempt=found.attempt + 1,"
OWNS = "record.attempt == fence.attempt and record.token == fence.token"
ABANDONED = 'found.lapsed(now) and found.on_lapse != "uncertain"'

ABLATIONS: dict[str, tuple[str, str]] = {
    "an own token opens a settled record": ("Grant.OWN if found.state is State.CLAIMED else None", "Grant.OWN"),
    "an own claim is not recognised": ("Grant.OWN if found.state is State.CLAIMED else None", "None"),
    "a token is granted again after its release": (
        "if found.token == op.token:",
        "if found.token == op.token and found.state is State.CLAIMED:",
    ),
    "a token is granted again after a takeover": ("if op.token in found.ended:", "if False:"),
    "a new life forgets the old tokens": ("() if before is None else before.ended_with_this", "()"),
    "a takeover forgets the old tokens": ("ended=found.ended_with_this,", ""),
    "an advance is obeyed whatever its number": ("op.number != record.advances + 1", "False"),
    "an advance goes uncounted": ("advances=op.number,", ""),
    "a takeover goes on counting": ("advances=0,", ""),
    "any advance of that number passes for one's own": (
        "(found.advances, found.point, found.progress) == (op.number, op.point, op.progress)",
        "found.advances == op.number",
    ),
    "a renewal shortens the lease": ("max(record.lease_until, add_micros(now, op.lease))", "add_micros(now, op.lease)"),
    "a renewal brings back who gave up": (
        "record.state is State.UNCERTAIN and record.advances == CLOSED:\n        return None",
        "False:\n        return None",
    ),
    "an owner cannot give up": ("advances=CLOSED)", "advances=record.advances)"),
    "the sweeper speaks for the owner": (
        "return record._replace(state=State.UNCERTAIN, note=op.note)",
        "return record._replace(state=State.UNCERTAIN, note=op.note, advances=CLOSED)",
    ),
    "only one form of a fingerprint counts": (
        "not op.accepts(found.fingerprint)",
        "found.fingerprint != op.fingerprint",
    ),
    "settled records are reborn before they expire": (
        "found.state in SETTLED and found.expired(now)",
        "found.state in SETTLED",
    ),
    "settled records are never reborn": ("found.state in SETTLED and found.expired(now)", "False"),
    "another request is let in": ("not op.accepts(found.fingerprint) or", ""),
    "a resume goes on with any run": ("or not op.wants(found.run)", ""),
    "a resume gives birth": ("return None if op.resumes else Grant.BIRTH", "return Grant.BIRTH"),
    "a resume begins another life": ("return None if op.resumes else Grant.REBIRTH", "return Grant.REBIRTH"),
    "unknown outcomes are run again": (ABANDONED, "found.lapsed(now)"),
    "a living owner is replaced": (ABANDONED, 'found.state is State.CLAIMED and found.on_lapse != "uncertain"'),
    "a released key stays shut": ("found.state is State.RELEASED or abandoned", "abandoned"),
    "a takeover keeps the attempt": (NEXT_ATTEMPT, "attempt=found.attempt,"),
    "a takeover mints a run": (NEXT_ATTEMPT, f"{NEXT_ATTEMPT} run=op.run,"),
    "a takeover replaces the input": (NEXT_ATTEMPT, f"{NEXT_ATTEMPT} input=op.input,"),
    "a takeover restarts retention": (NEXT_ATTEMPT, f"{NEXT_ATTEMPT} created=now,"),
    "a takeover drops the recovery point": (NEXT_ATTEMPT, f'{NEXT_ATTEMPT} point="",'),
    "an answer is not kept for an hour": ("add_micros(now, KEPT_AFTER_COMPLETION_MICROS)", "0"),
    "retention counts from the end": (
        "add_micros(record.created, record.retention)",
        "add_micros(now, record.retention)",
    ),
    "unfinished work expires": ("FOREVER_MICROS if unfinished else kept", "kept"),
    "the sweeper accuses the living": ("not record.lapsed(now) or record.on_lapse", "record.on_lapse"),
    "the sweeper takes what may be rerun": (
        'not record.lapsed(now) or record.on_lapse != "uncertain"',
        "not record.lapsed(now)",
    ),
    "claimed records are resolved": ("if not is_outcome_unknown(record, now):\n        return None", "pass"),
    "a living owner is resolved": (
        '(record.lapsed(now) and record.on_lapse == "uncertain")',
        'record.on_lapse == "uncertain"',
    ),
    "what may be taken over is resolved": (
        'record.lapsed(now) and record.on_lapse == "uncertain")',
        "record.lapsed(now))",
    ),
    "a lapsed one waits for the sweeper": (
        'record.state is State.UNCERTAIN or (record.lapsed(now) and record.on_lapse == "uncertain")',
        "record.state is State.UNCERTAIN",
    ),
    "unfinished work is forgotten": (
        'if record.state is State.RELEASED and record.point != "":\n        return None',
        "pass",
    ),
    "forgetting keeps the progress": ('input=b"", progress=b""', 'input=b""'),
    "open records are forgotten": ("Forget: (SETTLED, forget)", "Forget: (OPEN | SETTLED, forget)"),
    "an answer is written twice": ("Complete: (OPEN, complete)", "Complete: (OPEN | SETTLED, complete)"),
    "a completed record is released": ("Release: (OPEN, release)", "Release: (OPEN | SETTLED, release)"),
    "a completed record is withdrawn": ("Withdraw: (OPEN, withdraw)", "Withdraw: (OPEN | SETTLED, withdraw)"),
    "a suspected owner cannot withdraw": (
        "Withdraw: (OPEN, withdraw)",
        "Withdraw: (frozenset({State.CLAIMED}), withdraw)",
    ),
    "a withdrawn key stays shut": ("released._replace(expires=now) if untouched else released", "released"),
    "a later attempt is withdrawn": ('record.attempt == 1 and record.point == ""', 'record.point == ""'),
    "unfinished work is withdrawn": ('record.attempt == 1 and record.point == ""', "record.attempt == 1"),
    "what was withdrawn is reaped at once": ("record.expired(now) and kept <= now", "record.expired(now)"),
    "a suspected owner cannot renew": ("Renew: (OPEN, renew)", "Renew: (frozenset({State.CLAIMED}), renew)"),
    "a suspected owner cannot advance": ("Advance: (OPEN, advance)", "Advance: (frozenset({State.CLAIMED}), advance)"),
    "the token is not compared": (OWNS, "record.attempt == fence.attempt"),
    "the attempt is not compared": (OWNS, "record.token == fence.token"),
    "any answer passes for one's own": (
        "found.state is State.COMPLETED and found.answer == op.answer",
        "found.state is State.COMPLETED",
    ),
    "a release is not recognised": ("return found.state is State.RELEASED", "return False"),
    "a suspicion is not recognised": ("return found.state is State.UNCERTAIN", "return False"),
    "strangers are recognised": (
        "if found is None or not owns(found, op.fence):\n        return False",
        "assert found is not None",
    ),
    **{
        f"{verb} is not fenced": (FENCE, f"found is not None and (isinstance(op, {verb}) or owns(found, op.fence))")
        for verb in ("Renew", "Advance", "Complete", "Release", "Withdraw", "Suspect", "Resolve", "Forget")
    },
}


def contract() -> list[Callable[..., None]]:
    """Every contract function with each set of its parameters."""
    return [case for topic in TOPICS for case in cases(import_module(f"retrysafe.testing.contract.{topic}"))]


def cases(module: ModuleType) -> Iterator[Callable[..., None]]:
    for name, function in vars(module).items():
        if name.startswith("test_"):
            marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
            for chosen in itertools.product(*(list(parameters(*mark.args)) for mark in marks)):
                yield partial(function, **{key: value for part in chosen for key, value in part.items()})


def parameters(names: str | tuple[str, ...], values: object) -> Iterator[dict[str, object]]:
    assert isinstance(values, list | tuple | dict) or hasattr(values, "__iter__")
    for value in values:
        yield {names: value} if isinstance(names, str) else dict(zip(names, value, strict=True))


def first_failure() -> Callable[..., None] | None:
    for case in contract():
        try:
            case(do=Do.sync(memory.MemoryStore()))
        except Exception:
            return case
    return None


def broken(name: str, old: str, new: str) -> ModuleType:
    source = inspect.getsource(moves)
    assert old in source, f"core/moves.py no longer says {old!r}: bring the ablation {name!r} up to date"
    module = ModuleType("broken_moves")
    sys.modules[module.__name__] = module
    exec(compile(source.replace(old, new), module.__name__, "exec"), vars(module))
    return module


def test_the_machine_as_it_is_passes() -> None:
    assert first_failure() is None


@pytest.mark.parametrize("name", ABLATIONS)
def test_a_broken_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = broken(name, *ABLATIONS[name])
    monkeypatch.setattr(memory, "claim", module.claim)
    monkeypatch.setattr(memory, "move", module.move)
    monkeypatch.setattr(memory, "reapable", module.reapable)
    assert first_failure() is not None, f"nobody noticed that {name}"
