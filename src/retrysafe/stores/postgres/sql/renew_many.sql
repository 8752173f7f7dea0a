-- Many heartbeats, one commit. A row that another transaction has locked is left out, because no lease may wait for a row
-- of another call (I33). Each renewed record is returned with true, and each that is still its owner's and locked, with
-- false.
WITH free AS (
    SELECT id FROM {keys} WHERE id = ANY(CAST(:id AS bytea[])) FOR UPDATE SKIP LOCKED
), owned AS (
    SELECT g.id, g.attempt, g.token, g.lease FROM unnest(
        CAST(:id AS bytea[]), CAST(:attempt AS integer[]), CAST(:token AS bytea[]), CAST(:lease AS bigint[])
    ) AS g(id, attempt, token, lease)
), renewed AS (
    UPDATE {keys} AS k SET
        state = 'claimed',
        lease_until = {greatest}(k.lease_until, {least}(clock.now + g.lease, {forever})), note = ''
    FROM (SELECT {now} AS now OFFSET 0) AS clock, owned AS g, free
    WHERE k.id = g.id AND k.id = ANY(CAST(:id AS bytea[])) AND k.attempt = g.attempt AND k.token = g.token
        AND k.id = free.id
        AND k.state NOT IN ('completed', 'released') AND (k.state = 'claimed' OR k.advances <> {closed})
    RETURNING k.id
)
SELECT id, true FROM renewed
UNION ALL
SELECT k.id, false
FROM {keys} AS k, owned AS g
WHERE k.id = g.id AND k.id = ANY(CAST(:id AS bytea[])) AND k.attempt = g.attempt AND k.token = g.token
    AND k.state NOT IN ('completed', 'released') AND (k.state = 'claimed' OR k.advances <> {closed})
    AND k.id NOT IN (SELECT id FROM free)
