-- Many claims of keys that probably have a record: the records, by the claims' ids. Nothing is locked or written. A claim
-- whose id is not returned is sent again by claim_many.sql. `OFFSET 0`: the time is read once.
SELECT clock.now, {columns}
FROM (SELECT {now} AS now OFFSET 0) AS clock, {keys}
WHERE id = ANY(CAST(:id AS bytea[]))
