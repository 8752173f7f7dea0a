-- Whether this still is the transaction that began.
SELECT {began} = :began
