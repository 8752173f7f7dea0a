-- When this transaction began.
SELECT {began}
