"""Functions of retrysafe in C. `retrysafe/core/speedups.py` says what each does, and is the only place that imports
them. This import fails if RETRYSAFE_SPEEDUPS is `off`, and if the package was installed without its C part."""

import os

SWITCH = "RETRYSAFE_SPEEDUPS"
OFF = frozenset({"off", "0", "no", "false"})

if os.environ.get(SWITCH, "").strip().lower() in OFF:
    raise ImportError(f"{SWITCH}={os.environ[SWITCH]}")

from retrysafe_speedups._speedups import (  # noqa: E402  (after the switch was read)
    canonicalize_json,
    encode_answer,
    encode_born,
    pack_key,
    pack_words,
)

FORM = 1
"""Counts up when a function gives other bytes or takes other arguments. retrysafe uses only the form that it knows."""

__all__ = ["FORM", "canonicalize_json", "encode_answer", "encode_born", "pack_key", "pack_words"]
