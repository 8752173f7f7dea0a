"""Functions of retrysafe in C. `retrysafe/core/speedups.py` says what each does, and is the only place that imports
them. This import fails if the package was installed without its C part."""

from retrysafe_speedups._speedups import canonicalize_json, encode_answer, encode_born, pack_key, pack_words

FORM = 1
"""Counts up when a function gives other bytes or takes other arguments. retrysafe uses only the form that it knows."""

__all__ = ["FORM", "canonicalize_json", "encode_answer", "encode_born", "pack_key", "pack_words"]
