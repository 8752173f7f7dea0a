-- The number of this transaction.
SELECT {began}
