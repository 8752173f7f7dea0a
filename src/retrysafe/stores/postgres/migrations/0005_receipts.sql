-- The worker's way to the receipts of runs that may have ended: the row that names a run's record, the oldest first.
SET LOCAL lock_timeout = '3s';

CREATE INDEX IF NOT EXISTS "{prefix}_named" ON {receipts} (created, run) WHERE step = 'record';
