"""Natural batching: calls that have to wait anyway are sent together.

When nothing is in flight an operation goes at once, by the plain path. Whatever arrives meanwhile waits, and goes as
one `execute_many`: one statement, one commit, one round trip for all of them. Nobody waits for a timer, and nobody
is told "yours" before the commit.

One lane for all kinds of operation where the store takes them together (it says `mixes`), else a lane per kind. One
operation of a key per batch. When a batch fails unclearly it is sent again as a whole: each operation recognises its
own earlier success. When it is refused it is split, so that one bad operation fails alone. Whoever is left alone, or
cannot go together with others, is sent by its own caller, beside the lane: a key that somebody holds must not hold up
everybody else.
"""
