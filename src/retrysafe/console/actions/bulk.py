"""Act on all keys that match a filter, in two steps. The first shows what would be changed as of now, up to a cap. The
second changes exactly those rows, each fenced; what changed meanwhile is skipped and listed."""

from __future__ import annotations

import re
from typing import NamedTuple

from retrysafe.console.actions.keys import read_happened
from retrysafe.console.messages import ConsoleResponse
from retrysafe.console.pages.keys import KeyFilter
from retrysafe.console.visit import Visit
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.audit import MAX_NAMED_RECORDS
from retrysafe.errors import UsageError
from retrysafe.operators.bulk import BulkAction, BulkFilter, BulkSelection
from retrysafe.operators.key_actions import KeyAction, make_release, make_resolve

EXAMINED_ROWS = 10_000
"""How many records of the state the preview reads at most."""
NOT_ALLOWED = "you may not do this with it"
_ROW = re.compile(r"([0-9a-f]{64}):([0-9]{1,9})")


class BulkForm(NamedTuple):
    """What both steps send: the action and the filter."""

    verb: str
    wanted: KeyFilter
    action: KeyAction
    bulk: BulkAction


def read_form(visit: Visit) -> BulkForm:
    verb = visit.request.field("verb")
    visit.check(verb)
    wanted = KeyFilter.read(visit.request.form)
    if wanted.key:
        raise UsageError("a bulk action has no key: open the page of the key instead")
    if verb == "keys resolve":
        action = make_resolve(visit.session, visit.reason.because, happened=read_happened(visit))
    elif verb == "keys release":
        action = make_release(visit.reason.because)
    else:
        raise UsageError(f"verb {verb!r}: there are keys resolve and keys release")
    filters = BulkFilter(
        wanted.scope or None,
        wanted.target or None,
        wanted.kind or None,
        wanted.older_than * SECOND_MICROS,
        lapsed=verb == "keys release",
    )
    return BulkForm(verb, wanted, action, BulkAction(visit.session, action, filters))


def read_number(visit: Visit, name: str, highest: int) -> int:
    text = visit.request.field(name)
    if not text.isdecimal() or len(text) > 18 or not 1 <= int(text) <= highest:
        raise UsageError(f"{name} {text!r}: give a number from 1 to {highest}")
    return int(text)


def preview(visit: Visit) -> ConsoleResponse:
    """What would be changed. Nothing is changed yet."""
    form = read_form(visit)
    cap = read_number(visit, "cap", MAX_NAMED_RECORDS)
    choice = form.bulk.choose(cap, EXAMINED_ROWS)
    allowed = [each for each in choice.chosen if visit.may(form.verb, each.record)]
    return visit.render(
        "bulk_preview.html",
        title="Bulk action",
        form=form,
        chosen=allowed,
        refused=choice.refused + len(choice.chosen) - len(allowed),
        as_of=choice.as_of,
        cap=cap,
        complete=choice.complete,
        outcome=visit.request.field("outcome"),
        because=visit.request.field("because"),
        now=visit.now,
    )


def confirm(visit: Visit) -> ConsoleResponse:
    form = read_form(visit)
    as_of = read_number(visit, "as_of", visit.now)
    cap = read_number(visit, "cap", MAX_NAMED_RECORDS)
    rows = read_rows(visit.request.form.get("row", []), cap)
    choice = _drop_forbidden(visit, form, form.bulk.choose_again(as_of, rows))
    done = form.bulk.act(choice, visit.reason, {**describe_filter(form.wanted), "cap": cap})
    return visit.render("bulk_done.html", title="Bulk action", form=form, done=done, skipped=choice.skipped)


def describe_filter(wanted: KeyFilter) -> dict[str, str]:
    """For the audit row, which is kept for long and holds no scope (engine/audit.py): only that there was one."""
    found = wanted.params()
    return {**found, "scope": "one"} if wanted.scope else found


def _drop_forbidden(visit: Visit, form: BulkForm, choice: BulkSelection) -> BulkSelection:
    allowed = [each for each in choice.chosen if visit.may(form.verb, each.record)]
    others = [(each.record.id.hex(), NOT_ALLOWED) for each in choice.chosen if each not in allowed]
    return choice._replace(chosen=allowed, skipped=[*choice.skipped, *others])


def read_rows(texts: list[str], cap: int) -> list[tuple[bytes, int]]:
    """The rows that the first step showed: id and attempt of each."""
    found = [_ROW.fullmatch(text) for text in texts]
    rows = list(dict.fromkeys((bytes.fromhex(match[1]), int(match[2])) for match in found if match is not None))
    if None in found or not 1 <= len(rows) <= cap:
        raise UsageError(f"{len(texts)} rows were sent: begin again with the preview, and choose 1 to {cap}")
    return rows
