"""Which policy a request falls under: `{"POST /orders/{id}/pay": Policy(...)}`, compiled once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from retrysafe.core.ops import value_class
from retrysafe.engine.events import Series
from retrysafe.errors import UsageError
from retrysafe.policy import Policy
from retrysafe.web.paths import MAX_TARGET_CHARS, build_target, sanitize_target
from retrysafe.web.view import RequestView

PROTECTED_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

RouteFingerprint = Callable[[RequestView, bytes], bytes | str]
"""Returns what identifies "the same request" on this route. Method and path are always compared, too."""

UNLISTED: Series = ("http", "unlisted")
MAX_REMEMBERED_PATHS = 1_024
"""How many paths the table remembers. Clients choose the paths, so the number and the length are bounded."""

_FIELD = re.compile(r"\{([A-Za-z_]\w*)(:path)?\}")


@value_class
class Route:
    """How one route is protected. In `routes`, None instead of a Route leaves the route unprotected."""

    policy: Policy
    fingerprint: RouteFingerprint | None = None
    target: str = ""
    listed: bool = False
    """True if the developer named it in `routes`."""
    series: Series = UNLISTED
    """The kind and the target in figures: what was named in `routes`. A path is not: it may hold ids, and clients
    choose it."""


RouteOption = Policy | Route | None


class RouteTable:
    """The listed routes, and the default for all others."""

    def __init__(
        self,
        default: Policy,
        listed: Mapping[str, RouteOption],
        methods: frozenset[str],
        fingerprint: RouteFingerprint | None,
    ) -> None:
        unsafe = methods & SAFE_METHODS
        if unsafe:
            raise UsageError(f"methods names {sorted(unsafe)}, which are safe methods and need no key; leave them out")
        self._default = default
        self._fingerprint = fingerprint
        self._exact: dict[tuple[str, str], Route | None] = {}
        self._patterns: list[tuple[str, re.Pattern[str], Route | None]] = []
        self._found: dict[tuple[str, str], Route | None] = {}
        for name, option in listed.items():
            self._add(name, option)
        self._methods = methods
        self._unlisted: dict[str, Series] = {method: ("http", f"{method} unlisted") for method in methods}
        self.methods = methods | {method for method, _ in self._exact} | {method for method, _, _ in self._patterns}

    def find(self, method: str, path: str) -> Route | None:
        """The route of a request whose method is among `methods`; None if it is not protected."""
        try:
            return self._found[method, path]
        except KeyError:
            found = self._match(method, path)
        if len(path) <= MAX_TARGET_CHARS:
            if len(self._found) >= MAX_REMEMBERED_PATHS:
                self._found.clear()
            self._found[method, path] = found
        return found

    def _match(self, method: str, path: str) -> Route | None:
        if (method, path) in self._exact:
            return self._exact[method, path]
        for listed_method, pattern, route in self._patterns:
            if listed_method == method and pattern.fullmatch(path):
                return route
        if method not in self._methods:
            return None
        return Route(self._default, self._fingerprint, build_target(method, path), False, self._unlisted[method])

    def list_policies(self) -> list[Policy]:
        routes = [*self._exact.values(), *(route for _, _, route in self._patterns)]
        return [self._default, *(route.policy for route in routes if route is not None)]

    def _add(self, name: str, option: RouteOption) -> None:
        method, _, path = name.partition(" ")
        method, path = method.upper(), path.strip()
        if not method.isalpha() or not path.startswith("/"):
            raise UsageError(f"route {name!r} is not like 'POST /orders/{{id}}/pay': a method, a space, a path")
        if method in SAFE_METHODS:
            raise UsageError(f"route {name!r}: {method} is a safe method and is never captured; leave it out")
        route = self._build_route(name, method, path, option)
        if _FIELD.search(path):
            self._patterns.append((method, _compile_path(path), route))
        elif "{" in path or "}" in path:
            raise UsageError(f"route {name!r}: a field is written {{name}}, or {{name:path}} for the rest of the path")
        else:
            self._exact[method, path] = route

    def _build_route(self, name: str, method: str, path: str, option: RouteOption) -> Route | None:
        if option is None:
            return None
        target = sanitize_target(f"{method} {path}")
        if isinstance(option, Policy):
            return Route(option, self._fingerprint, target, listed=True, series=("http", target))
        if isinstance(option, Route):
            target = sanitize_target(option.target or target)
            fingerprint = option.fingerprint or self._fingerprint
            return Route(option.policy, fingerprint, target, listed=True, series=("http", target))
        raise UsageError(f"route {name!r} is given {option!r}; give a Policy, a Route, or None for no protection")


def _compile_path(path: str) -> re.Pattern[str]:
    pattern, end = "", 0
    for field in _FIELD.finditer(path):
        pattern += re.escape(path[end : field.start()]) + (".+" if field.group(2) else "[^/]+")
        end = field.end()
    return re.compile(pattern + re.escape(path[end:]), re.DOTALL)
