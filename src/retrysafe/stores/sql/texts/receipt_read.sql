-- How a transaction of the user's begins: try the key's lock, and read what is committed, in one round trip.
-- The snapshot is older than the lock, so a receipt that was committed in between is not seen here; it is
-- met when ours is inserted, and everything is rolled back.
SELECT {try_lock}, {note_began}, (SELECT value FROM {meta} WHERE name = 'install'), clock.moment, {columns}
FROM (SELECT {now} AS moment) AS clock
LEFT JOIN {keys} ON id = :id
