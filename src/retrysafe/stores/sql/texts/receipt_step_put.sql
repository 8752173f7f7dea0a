-- In the same commit as the user's writes: this step is done, and this is its result.
INSERT INTO {receipts} (run, step, result, created) VALUES (:run, :step, :result, {now})
