"""Doctor: the store's real settings, what they are worth, and the command that mends each."""

from __future__ import annotations

from retrysafe.console.messages import ConsoleResponse, redirect
from retrysafe.console.visit import Visit
from retrysafe.stores.diagnosis import LABELS


def show_doctor(visit: Visit) -> ConsoleResponse:
    if visit.request.param("again") == "1":
        visit.console.verdict.read(anew=True)
        return redirect(visit.request.url("/doctor"))  # else the page would ask anew whenever it asks for itself
    verdict = visit.console.verdict.read()
    return visit.render(
        "doctor.html",
        title="Doctor",
        verdict=verdict,
        error=visit.console.verdict.error,
        labels=LABELS,
        where=repr(visit.safe),
    )
