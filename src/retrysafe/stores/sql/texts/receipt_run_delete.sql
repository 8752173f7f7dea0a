-- Delete the receipts of an operation that ended long enough ago.
DELETE FROM {receipts} WHERE run = :run
