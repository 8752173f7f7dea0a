-- Its operation has ended, long enough ago.
DELETE FROM {receipts} WHERE run = :run
