-- One record, and the time it was read at; the time comes back even when there is no record.
SELECT clock.moment, {columns}
FROM (SELECT {now} AS moment) AS clock
LEFT JOIN {keys} ON id = :id
