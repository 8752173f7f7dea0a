-- For the worker: the receipts of runs that may have ended, by the row that names the run's record, the oldest first.
SET LOCAL lock_timeout = '3s';

CREATE INDEX IF NOT EXISTS "{prefix}_named" ON {receipts} (created, run) WHERE step = 'record';
