-- Whether the marked transaction was committed before it came to its end.
SELECT EXISTS (SELECT 1 FROM {receipts} WHERE run = :marker AND step = 'began')
