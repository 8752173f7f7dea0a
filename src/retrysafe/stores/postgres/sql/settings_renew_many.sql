-- The first statement of a batch of renewals that waits for locked rows. The wait is a small part of the lease (see `brief`
-- in dialect.py), because other leases share the threads and the connection. The other settings: see settings_many.sql.
SELECT
    set_config('lock_timeout', least(100, greatest(5, CAST(:lease AS bigint) / 200000))::text, true),
    set_config('enable_seqscan', 'off', true), set_config('enable_nestloop', 'off', true), set_config('jit', 'off', true)
