-- One record, and the time of the read. The time is returned also if there is no record.
SELECT clock.moment, {columns}
FROM (SELECT {now} AS moment) AS clock
LEFT JOIN {keys} ON id = :id
