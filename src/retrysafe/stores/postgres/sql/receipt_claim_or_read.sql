-- How a transaction of the user's begins: try the key's lock, read what is committed, and write the record of a new key,
-- in one round trip. The record is a claim whose lease is over and whose outcome is unknown; the last write of the
-- transaction makes it the receipt. So others see it only if the transaction was committed in between, by hand.
-- The snapshot is older than the lock. If a record was committed in between, nothing is read and nothing is inserted: ask
-- again.
-- A stored answer needs no number of its transaction, and on PostgreSQL a number is used up by asking for it.
WITH clock AS MATERIALIZED (
    SELECT {now} AS moment
), held AS MATERIALIZED (
    SELECT {try_lock} AS locked
), seen AS MATERIALIZED (
    SELECT {columns} FROM {keys} WHERE id = :id
), fresh AS (
    INSERT INTO {keys} ({columns})
    SELECT
        :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'claimed', 1, :token, :run,
        clock.moment, 'uncertain', '', {empty}, :input, NULL, '', {empty}, '', '',
        clock.moment, clock.moment, 0, {forever}, CAST(:retention AS bigint), 0, :tokens
    FROM clock, held
    WHERE held.locked AND NOT EXISTS (SELECT 1 FROM seen)
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
SELECT
    held.locked,
    CASE WHEN seen.state = 'completed' AND seen.expires > clock.moment THEN 0 ELSE {began} END,
    (SELECT value FROM {meta} WHERE name = 'install'), clock.moment, EXISTS (SELECT 1 FROM fresh), seen.*
FROM clock CROSS JOIN held LEFT JOIN seen ON true
