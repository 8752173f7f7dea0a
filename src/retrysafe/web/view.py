"""RequestView: a request as `scope`, `fingerprint` and the user's other callables see it, small and read-only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from retrysafe.core.ops import value_class
from retrysafe.web.paths import normalize_path


class HeaderView(Mapping[str, str]):
    """Headers by case-insensitive name. Several lines of one name are joined with a comma, as HTTP allows."""

    __slots__ = ("_values",)

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._values: dict[str, str] = {}
        for name, text in pairs:
            name = name.lower()
            self._values[name] = f"{self._values[name]}, {text}" if name in self._values else text

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name.lower(), default)  # overridden for speed: Mapping.get raises and catches KeyError

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get_raw(self, name: bytes) -> bytes | None:
        """The value of a header as bytes. `name` is in lower case."""
        found = self._values.get(name.decode("latin-1"))
        return None if found is None else found.encode("latin-1", "replace")

    def __repr__(self) -> str:
        return f"HeaderView({', '.join(self._values)})"  # only the names: values are often secrets


class RawHeaderView(HeaderView):
    """The headers of an ASGI scope. Text is made of those that are asked for: most requests need two or three."""

    __slots__ = ("_joined",)

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        pairs = tuple(headers)  # as they are now: an application may change its scope
        self._joined = joined = dict(pairs)
        if len(joined) < len(pairs) or not b"".join(joined).islower():  # a name twice, or not in lower case
            joined.clear()
            for name, value in pairs:
                name = name.lower()
                joined[name] = joined[name] + b", " + value if name in joined else value

    def get(self, name: str, default: Any = None) -> Any:
        found = self._joined.get(_encode_name(name))
        return default if found is None else found.decode("latin-1")

    def __getitem__(self, name: str) -> str:
        found = self._joined.get(_encode_name(name))
        if found is None:
            raise KeyError(name.lower())
        return found.decode("latin-1")

    def get_raw(self, name: bytes) -> bytes | None:
        return self._joined.get(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _encode_name(name) in self._joined

    def __iter__(self) -> Iterator[str]:
        return iter([name.decode("latin-1") for name in self._joined])

    def __len__(self) -> int:
        return len(self._joined)

    def __repr__(self) -> str:
        return f"HeaderView({', '.join(self)})"


@lru_cache(256)
def _encode_name(name: str) -> bytes:
    return name.lower().encode("latin-1", "replace")


@value_class
class RequestView:
    """A request as the user's callables see it. `raw` is the ASGI scope or the WSGI environ."""

    method: str
    path: str
    query: str
    headers: HeaderView
    client: str
    raw: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"RequestView({self.method} {normalize_path(self.path)})"  # query and headers may hold secrets


def view_from_scope(scope: Mapping[str, Any]) -> RequestView:
    client = scope.get("client")
    return RequestView(
        scope["method"].upper(),
        scope["path"],
        scope.get("query_string", b"").decode("latin-1"),
        RawHeaderView(scope["headers"]),
        client[0] if client else "",
        scope,
    )


def view_from_environ(environ: Mapping[str, Any]) -> RequestView:
    return RequestView(
        environ["REQUEST_METHOD"].upper(),
        environ_path(environ),
        environ.get("QUERY_STRING", ""),
        HeaderView(_environ_headers(environ)),
        environ.get("REMOTE_ADDR", ""),
        environ,
    )


def environ_path(environ: Mapping[str, Any]) -> str:
    """The whole path as text. WSGI passes the bytes of a path decoded as latin-1 (PEP 3333)."""
    path: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return path.encode("latin-1", "replace").decode("utf-8", "replace")


def read_mount_path(view: RequestView) -> str:
    """The path under which the application is mounted."""
    path: str = view.raw.get("root_path") or view.raw.get("SCRIPT_NAME") or ""
    return path


def _environ_headers(environ: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            yield name.replace("_", "-"), environ[name]
    for name, text in environ.items():
        if name.startswith("HTTP_"):
            yield name[5:].replace("_", "-"), text
