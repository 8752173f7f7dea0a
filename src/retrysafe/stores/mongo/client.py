"""What both colours of pymongo are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from bson.codec_options import CodecOptions
from pymongo import errors

from retrysafe.core.urls import redact_secrets
from retrysafe.errors import StoreURLError
from retrysafe.stores.mongo.settings import DEFAULT_CLIENT_OPTIONS, FIXED_CLIENT_OPTIONS

CODEC: CodecOptions[Mapping[str, Any]] = CodecOptions(document_class=dict, tz_aware=True)
"""Ours, whatever the user's client is set to."""

MAX_PARALLEL_OPS = 16
"""How many operations of one batch are under way at once."""


def make_client(kind: Any, url: str) -> Any:
    """A client for this URL. Nothing connects yet, but what is wrong with the URL is found here."""
    given = {name.lower() for name, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True)}
    defaults = {name: value for name, value in DEFAULT_CLIENT_OPTIONS.items() if name.lower() not in given}
    try:
        return kind(url, **{**defaults, **FIXED_CLIENT_OPTIONS})
    except (errors.ConfigurationError, ValueError, TypeError) as error:  # an InvalidURI is the first
        raise StoreURLError(f"the URL is not what MongoDB's driver takes: {redact_secrets(str(error), url)}") from error
