-- The first write of a user's transaction. The last one takes it away again (receipt_unmark), so others can see this row
-- only if the transaction was committed in between.
INSERT INTO {receipts} (run, step, result, created) VALUES (:marker, 'began', '', {now}) RETURNING 1
