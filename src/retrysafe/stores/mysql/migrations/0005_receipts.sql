-- The worker's way to the receipts of runs that may have ended: the row that names a run's record, the oldest first.
ALTER /* or nothing */ TABLE {receipts}
    ADD KEY `{prefix}_named` (step, created);
