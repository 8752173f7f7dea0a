-- Many claims of keys that probably have a record: the records, by the claims' ids. Nothing is locked or written. A claim
-- whose id is not returned is sent again by claim_many.sql. So is every claim on a server that cannot write: it is a
-- standby, or a primary that was replaced, and refuses them then. `OFFSET 0`: time and setting are read once.
SELECT clock.now, {columns}
FROM (SELECT {now} AS now, current_setting('transaction_read_only') AS read_only OFFSET 0) AS clock, {keys}
WHERE clock.read_only = 'off' AND id = ANY(CAST(:id AS bytea[]))
