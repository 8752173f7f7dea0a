-- How a transaction of the user's begins: try the key's lock, and read what is committed, in one round trip.
-- The snapshot is older than the lock, so a receipt that was committed in between is not seen here; it is
-- met when ours is inserted, and everything is rolled back.
-- A stored answer needs no number of its transaction, and on PostgreSQL a number is used up by asking for it.
SELECT
    {try_lock}, CASE WHEN state = 'completed' AND expires > clock.moment THEN 0 ELSE {began} END, (SELECT value FROM {meta} WHERE name = 'install'), clock.moment, {columns}
FROM (SELECT {now} AS moment) AS clock
LEFT JOIN {keys} ON id = :id
