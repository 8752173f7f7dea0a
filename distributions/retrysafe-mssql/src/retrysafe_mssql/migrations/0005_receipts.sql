-- The worker's way to the receipts of runs that may have ended: the row that names a run's record, the oldest first.
CREATE INDEX [{prefix}_named] ON {receipts} (step, created);
