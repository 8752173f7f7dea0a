-- Goes ahead of every batch, in the same transaction and for it alone (true: local), so that nothing of it is left
-- to whoever gets the connection next, from our pool or from a pooler's.
-- The wait for an uncommitted rival is short in a batch, because everybody in it waits along.
-- The statements of a batch are prepared and their plans kept, made for ten rows. A table that was small then would be
-- read from end to end when it has grown, and a batch of a hundred would be compared each with each
-- (tests/batching/test_plans.py). jit: what is switched off but cannot be done otherwise is priced so high, before
-- PostgreSQL 18, that the plan would be compiled.
SELECT
    set_config('lock_timeout', '100', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_nestloop', 'off', true), set_config('jit', 'off', true)
