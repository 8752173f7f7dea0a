-- What a local step left behind in the user's database, when the store is elsewhere.
SELECT result FROM {receipts} WHERE run = :run AND step = :step
