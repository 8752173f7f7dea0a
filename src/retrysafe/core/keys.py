"""Keys: parsed from a header, framed into a record's id, derived for other services.

Framing means that the length of each part precedes it. Without framing, ("a", "bc") and ("ab", "c") would be one
record, and a tenant could reach another tenant's record by the choice of its key.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter
from typing import Any

from retrysafe.core import values
from retrysafe.core.records import Fingerprint, Kind
from retrysafe.errors import MalformedKey, ScopeRequired, TemplateError

ID_VERSION = "1"
MAX_KEY_CHARS = 255
MAX_TEXT_CHARS = 1024
DERIVED_KEY_CHARS = 48

_PLAIN = re.compile(r"[\x21\x23-\x2b\x2d-\x7e][\x21-\x2b\x2d-\x7e]{0,254}")  # a bare key, as nearly all are
_BARE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")  # visible ASCII without the comma, which joins two header lines
_QUOTED = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_KEY_FIX = f"give 1 to {MAX_TEXT_CHARS} characters of text; shorten a long one to an id or a digest"
_QUOTED_FIX = (
    'send 1 to 255 visible ASCII characters as one string with nothing behind it, like "8e03978e-40d5", or bare'
)
_LENGTH = struct.Struct(">I").pack
_ESCAPE = re.compile(r'\\(["\\])')


def parse_key(header: str) -> str:
    """The key of an `Idempotency-Key` header: an RFC 8941 string or bare text. Both spellings mean the same key."""
    if _PLAIN.fullmatch(header):
        return header
    text = header.strip(" \t")
    if text.startswith('"'):
        quoted = _QUOTED.match(text)
        if quoted is None:
            raise MalformedKey(header, "it begins with a quote and is no RFC 8941 string", _QUOTED_FIX)
        behind = text[quoted.end() :].lstrip(" ")
        if behind.startswith(";"):
            raise MalformedKey(header, "parameters behind a quoted key mean nothing here", _QUOTED_FIX)
        if quoted.end() < len(text):
            raise MalformedKey(header, "something stands behind the quoted key", _QUOTED_FIX)
        key = _ESCAPE.sub(r"\1", quoted.group(1))
        if key and not _VISIBLE.fullmatch(key):
            raise MalformedKey(header, "a key has no spaces in it")
    else:
        key = text
        if key and not _BARE.fullmatch(key):
            raise MalformedKey(header, "a bare key is visible ASCII without a comma, in exactly one header line")
    if not key:
        raise MalformedKey(header, "the key is empty")
    if len(key) > MAX_KEY_CHARS:
        raise MalformedKey(header, f"the key has {len(key)} characters; at most {MAX_KEY_CHARS} are allowed")
    return key


def frame(*parts: str | bytes) -> bytes:
    """Parts joined so that no other list of parts gives the same bytes."""
    framed: list[bytes] = []
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        framed.append(_LENGTH(len(data)))
        framed.append(data)
    return b"".join(framed)


def record_id(kind: Kind, namespace: str, scope: str, key: str) -> bytes:
    """The id of a record, 32 bytes: a digest of its framed parts."""
    digest = _hash_id_prefix(kind, namespace, scope).copy()
    data = key.encode("utf-8", "surrogatepass")
    digest.update(_LENGTH(len(data)) + data)  # the frame of the last part
    return digest.digest()


@lru_cache(1024)
def _hash_id_prefix(kind: Kind, namespace: str, scope: str) -> hashlib._Hash:
    """The digest of all parts but the key. Many keys share it."""
    return hashlib.sha256(frame(ID_VERSION, kind, namespace, scope))


OBSERVED_PREFIX = "observed:"


def observed_namespace(namespace: str) -> str:
    """The namespace in which observe mode stores an application's records (web/observe.py)."""
    return OBSERVED_PREFIX + namespace


@dataclass(frozen=True, slots=True)
class Key:
    """A key and its scope. The scope is required: without it, tenants would share answers."""

    value: str
    scope: str
    kind: Kind = "http"
    request: Fingerprint | None = dataclasses.field(default=None, compare=False, repr=False)
    """The fingerprint of the HTTP request that brought the key, if one did. Operations compare it."""

    def __post_init__(self) -> None:
        if not isinstance(self.scope, str) or not self.scope:
            raise ScopeRequired(self.scope)
        _check_text("key", self.value)
        _check_text("scope", self.scope)

    @classmethod
    def from_header(cls, value: str, scope: str) -> Key:
        """The key of a request. `value` is what `parse_key` returned, so only the scope is checked. Every request makes
        a key, and the checks and the frozen fields of the constructor cost more than the rest."""
        if not isinstance(scope, str) or not scope:
            raise ScopeRequired(scope)
        if len(scope) > MAX_TEXT_CHARS or not scope.isascii() or "\0" in scope:
            _check_text("scope", scope)
        key = _new_key(cls)
        _set_value(key, value)
        _set_scope(key, scope)
        _set_kind(key, "http")
        set_request(key, None)
        return key

    def id(self, namespace: str) -> bytes:
        return record_id(self.kind, namespace, self.scope, self.value)


_new_key = object.__new__
_set_value, _set_scope, _set_kind, set_request = (
    vars(Key)[name].__set__ for name in ("value", "scope", "kind", "request")
)


def _check_text(name: str, text: str) -> None:
    if not isinstance(text, str) or not text:
        raise MalformedKey(str(text), f"the {name} is empty or not text", _KEY_FIX)
    if len(text) > MAX_TEXT_CHARS or "\0" in text or not (text.isascii() or _is_encodable(text)):
        why = f"the {name} has more than {MAX_TEXT_CHARS} characters, a NUL or a lone surrogate"
        raise MalformedKey(text, why, _KEY_FIX)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def derive(key: str | bytes | Key, service: str, step: str, *, part: str = "", undo: bool = False) -> str:
    """A stable key for another service's API: always the same for the same inputs; 48 characters, no colon.

    A request with `derive("order-7", "stripe", "charge")` may be sent any number of times and charges once.
    """
    root = frame(key.kind, key.scope, key.value) if isinstance(key, Key) else key
    digest = hashlib.sha256(frame("derive", root, service, step, "undo" if undo else "do", part))
    return digest.hexdigest()[:DERIVED_KEY_CHARS]


@dataclass(frozen=True, slots=True)
class Template:
    """A key template, `receipt:{order_id}`: it makes keys of a function's arguments, framed so that no two calls
    collide."""

    text: str
    fields: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        if not isinstance(text, str):
            raise TemplateError(repr(text), 'a key is written as a text that names arguments: "receipt:{order_id}"')
        try:
            pieces = list(Formatter().parse(text))
        except ValueError as error:
            raise TemplateError(text, str(error)) from None
        fields = []
        for _, field, spec, conversion in pieces:
            if field is None:
                continue
            if not field.isidentifier() or spec or conversion:
                raise TemplateError(text, f"a field is the plain name of an argument, like {{order_id}}; got {field!r}")
            fields.append(field)
        if not text or not fields:
            raise TemplateError(text, "name at least one argument, or every call would be the same call")
        return cls(text, tuple(fields))

    def fill(self, arguments: Mapping[str, Any]) -> str:
        """The key of one call. Values are canonical JSON in braces: `receipt:{42}` is not `receipt:{"42"}`."""
        filled = []
        for literal, field, _, _ in Formatter().parse(self.text):
            filled.append(literal)
            if field is not None:
                filled.append("{" + _format_field(field, arguments, self.text) + "}")
        return "".join(filled)


def _format_field(field: str, arguments: Mapping[str, Any], text: str) -> str:
    value = arguments[field]
    if value is None or value == "":
        raise TemplateError(text, f"{field} is {value!r}: an empty value would make different calls one call")
    try:
        return values.dumps(value)
    except values.NotPlain as error:
        raise TemplateError(text, f"{field} cannot be part of a key: {error}") from None
