-- The runs that have receipts here, by the row that names their record; the oldest first, after a cursor.
SELECT run, result, created FROM {receipts}
WHERE step = 'record' AND created >= :after AND (created > :after OR run > :last) AND created <= {now} - :age
ORDER BY created, run LIMIT :limit
