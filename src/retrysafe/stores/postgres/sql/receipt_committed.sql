-- Whether the transaction with this number was committed; NULL: it is still open, or so old that nobody knows. Any
-- connection to the server may ask: the one that the transaction was on may be lost, or a pooler may have swapped it.
SELECT CASE txid_status(CAST(:began AS bigint)) WHEN 'committed' THEN 1 WHEN 'aborted' THEN 0 END
