-- Many claims, one commit. They are sorted by id, so that two batches that share keys lock rows in the same order. The
-- first column is the number of inserted records; an inserted record needs no columns, because the claim has them all.
-- Each claim that was not inserted has a row with its id: with the record that is there, or without columns if another
-- transaction inserted it after our snapshot. If all were inserted, there is one row without an id. A record that may be
-- taken over, and one that could not be read, are claimed one by one afterwards.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
), fresh AS (
{text claim_new_many}
)
SELECT (SELECT count(*) FROM fresh), clock.now, taken.id, found.*
FROM clock
LEFT JOIN (
    SELECT asked.id FROM unnest(CAST(:id AS bytea[])) AS asked(id) WHERE asked.id NOT IN (SELECT id FROM fresh)
) AS taken ON true
LEFT JOIN LATERAL (
    SELECT {columns} FROM {keys} AS k WHERE k.id = taken.id LIMIT 1
) AS found ON true
