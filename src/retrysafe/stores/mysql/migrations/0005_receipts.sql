-- For the worker: the receipts of runs that may have ended, by the row that names the run's record, the oldest first.
ALTER /* or nothing */ TABLE {receipts}
    ADD KEY `{prefix}_named` (step, created);
