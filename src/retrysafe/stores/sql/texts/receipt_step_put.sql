-- Store that a step is done, with its result, in the same commit as the user's writes.
INSERT INTO {receipts} (run, step, result, created) VALUES (:run, :step, :result, {now})
