"""A visitor of a console without a server: it keeps cookies and sends the token of forms, as a browser does."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode, urlsplit

from retrysafe.console import Console, ConsoleRequest, ConsoleResponse, Operator

HOST = "console.test"
ORIGIN = f"http://{HOST}"


def make_console(safe: Any, **settings: Any) -> Console:
    """A console for one operator, who is logged in."""
    return Console(safe, **{"authenticate": lambda request: Operator("ann"), **settings})


class Visitor:
    def __init__(self, console: Console, mount: str = "") -> None:
        self._console, self._mount = console, mount
        self.cookies: dict[str, str] = {}

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> ConsoleResponse:
        parts = urlsplit(path)
        given = {"host": HOST} | {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            given["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        response = self._console.handle(ConsoleRequest(method, parts.path, parts.query, given, body, self._mount))
        for name, value in response.headers:
            if name == "set-cookie":
                cookie, _, _ = value.partition(";")
                key, _, content = cookie.partition("=")
                self.cookies[key] = content
        return response

    def get(self, path: str, **headers: str) -> ConsoleResponse:
        return self.send("GET", path, **headers)

    def post(self, path: str, fields: Any = (), *, origin: str = ORIGIN, **headers: str) -> ConsoleResponse:
        """A form of our own page."""
        if not self.cookies:
            self.get("/")
        pairs = list(fields.items()) if isinstance(fields, dict) else list(fields)
        pairs.append(("csrf", next(iter(self.cookies.values()))))
        return self.send("POST", path, urlencode(pairs).encode(), origin=origin, **headers)

    def follow(self, response: ConsoleResponse) -> ConsoleResponse:
        """The page that a form leads to."""
        assert response.status == 303, text_of(response)
        return self.get(response.header("location").removeprefix(self._mount))


class Markup(HTMLParser):
    """The elements and attributes of a page, and its text."""

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._texts: list[str] = []
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._texts).split())

    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        """Elements and the names of their attributes: what hostile data must not change."""
        return [(tag, tuple(attrs)) for tag, attrs in self.tags]


def text_of(response: ConsoleResponse) -> str:
    return Markup(response.body).text
