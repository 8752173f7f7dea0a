"""One visit: a request, who sent it, the store, and what pages need to answer."""

from __future__ import annotations

import inspect
import re
import secrets
from functools import cached_property
from typing import TYPE_CHECKING, Any

from retrysafe.console import csrf
from retrysafe.console.access import LOOK, Operator
from retrysafe.console.headers import matches_etag
from retrysafe.console.messages import ConsoleRequest, ConsoleResponse
from retrysafe.console.rendering import build_etag, build_policy, read_asset, render
from retrysafe.core.ops import Lookup
from retrysafe.core.records import Record
from retrysafe.engine.audit import AUDIT_KIND, AuditRow, read_audit
from retrysafe.operators.errors import NotFound, Refused
from retrysafe.operators.session import Reason, Session, open_on_safe

_ID = re.compile("[0-9a-fA-F]{64}")

if TYPE_CHECKING:
    from retrysafe.console.console import Console


class Visit:
    """Passed to every page and action."""

    def __init__(self, console: Console, request: ConsoleRequest, operator: Operator) -> None:
        self.console, self.request, self.operator = console, request, operator
        self.safe = console.safe
        self._known_token = csrf.read_token(request)
        self.token = self._known_token or csrf.draw_token()

    @cached_property
    def session(self) -> Session:
        return open_on_safe(self.safe)

    @cached_property
    def now(self) -> int:
        """The store's time, read once."""
        return self.session.read_time()

    @property
    def reason(self) -> Reason:
        """Who acts and why, from the form."""
        return Reason(self.operator.name, self.request.field("because"))

    def may(self, action: str, record: Any = None) -> bool:
        """Whether this operator may do it, and the console does it at all. Nobody acts on what they may not see."""
        if action != LOOK and not (self.console.actions and self.may(LOOK, record)):
            return False
        allowed: Any = self.console.authorize(self.operator, action, record)
        if inspect.isawaitable(allowed):  # true, whatever it would have answered
            raise TypeError(f"authorize returned {allowed!r}: return True or False; it cannot be async")
        return bool(allowed)

    def check(self, action: str, record: Any = None) -> None:
        if not self.may(action, record):
            raise Forbidden(f"{self.operator.name} may not do this here: {action}")

    def find_record(self, digits: str, action: str = LOOK) -> Record:
        """The record of this id, if it belongs to the application and the operator may see it."""
        record = self.look_up(digits)
        if record is None or record.namespace not in self.console.namespaces or not self.may(LOOK, record):
            raise NotFound(f"there is no record {digits[:64]!r} in namespace {self.session.namespace!r}")
        if action != LOOK:
            if record.namespace != self.session.namespace:
                raise Refused(f"the record belongs to {record.namespace!r}, which this console only shows")
            self.check(action, record)
        return record

    def look_up(self, digits: str) -> Record | None:
        """The record of this id, whoever it belongs to."""
        if not _ID.fullmatch(digits):
            return None
        found: Record | None = self.session.execute(Lookup(bytes.fromhex(digits))).record
        return found

    def find_audit_row(self, digits: str) -> AuditRow | None:
        """The audit row of this id, if it is one of the application."""
        found = self.look_up(digits)
        if found is None or found.kind != AUDIT_KIND or found.namespace != self.session.namespace:
            return None
        return read_audit(found, self.now)

    def render(self, template: str, status: int = 200, **values: Any) -> ConsoleResponse:
        """A page, or its inner part for htmx. Pages that are asked for again have an ETag."""
        nonce = secrets.token_urlsafe(18)
        whole = {"visit": self, "console": self.console, "request": self.request, "url": self.request.url, **values}
        whole |= {"asset": self.find_asset, "nonce": nonce, "csrf": self.token, "fragment": self.request.is_fragment}
        text = render(template, whole)
        headers = [("content-type", "text/html; charset=utf-8"), ("content-security-policy", build_policy(nonce))]
        cacheable = self.request.method in ("GET", "HEAD") and status == 200
        headers.append(("cache-control", "private, no-cache" if cacheable else "no-store"))
        headers.append(("vary", "Cookie, HX-Request"))
        body = text.encode()
        if self.request.is_fragment and cacheable:
            # The inner part has no nonce, so it is the same as long as what it shows is the same.
            etag = build_etag(body)
            headers.append(("etag", etag))
            if matches_etag(self.request.headers.get("if-none-match", ""), etag):
                return ConsoleResponse(304, b"", tuple(headers))
        if not self._known_token:
            headers.append(("set-cookie", csrf.build_cookie(self.token, self.request.url(""), secure=self.is_secure)))
        return ConsoleResponse(status, body, tuple(headers))

    def find_asset(self, name: str) -> str:
        """The address of a script or style sheet. It changes with its content: an update is not mixed with what a
        browser has kept of the release before."""
        found = read_asset(name)
        return self.request.url(f"/static/{name}", v=found[2][1:9] if found is not None else "")

    @property
    def is_secure(self) -> bool:
        raw = self.request.raw
        if not isinstance(raw, dict):
            return bool(getattr(raw, "is_secure", lambda: False)())
        return "https" in (raw.get("scheme"), raw.get("wsgi.url_scheme"))


class Forbidden(Refused):
    """The operator may not do this."""
