-- Whether this is still the transaction that began.
SELECT CASE WHEN {began} = :began THEN 1 ELSE 0 END
