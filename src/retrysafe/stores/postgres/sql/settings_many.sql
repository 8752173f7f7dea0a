-- The first statement of every batch, in the same transaction and only for it (true: local), so that the next user of the
-- connection, in our pool or in a pooler's, does not inherit the settings.
-- The wait for another transaction's row is short in a batch, because all operations of the batch wait.
-- The statements of a batch are prepared, and their plans are kept, made for ten rows. For a table that was small then and
-- has grown, such a plan would read the whole table, and compare each of a hundred operations with each row
-- (tests/batching/test_plans.py). jit: before PostgreSQL 18, a plan node that is switched off and cannot be avoided has
-- such a high cost that the plan would be compiled.
SELECT
    set_config('lock_timeout', '100', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_nestloop', 'off', true), set_config('jit', 'off', true)
