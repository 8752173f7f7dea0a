-- The marker of a transaction (receipt_mark) is not needed any more.
DELETE FROM {receipts} WHERE run = :marker AND step = 'began'
