"""Batching of concurrent calls (group commit): operations that have to wait anyway are sent together.

If no batch is in flight, an operation is sent at once, without batching. Operations that arrive meanwhile wait, and are
then sent as one `execute_many`: one statement, one commit and one round trip for all of them. No operation waits for a
timer. No claim is granted before the commit.

A store that declares `mixed_batches` has one queue for all kinds of operation; other stores have one queue per kind. A
batch holds at most one operation per key; claims of one key are one operation (core/shared_claims.py). If a batch fails
unclearly, the whole batch is sent again: each operation recognises its own earlier success. If a batch is refused, it
is split, so that only the bad operation fails. An operation that is alone in its batch, or that cannot be batched with
others, is sent by its own caller, outside the queue: a key that is locked must not delay the other keys.
"""
