-- The result of a local step in the user's database, when the store is another database.
SELECT result FROM {receipts} WHERE run = :run AND step = :step
