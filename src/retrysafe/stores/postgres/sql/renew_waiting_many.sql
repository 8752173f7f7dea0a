-- Many heartbeats whose rows another transaction had locked a moment ago, one commit. This statement waits for them, as long as
-- settings_renew_many.sql allows.
UPDATE {keys} AS k SET
    state = 'claimed',
    lease_until = {greatest}(k.lease_until, {least}(clock.now + g.lease, {forever})), note = ''
FROM (SELECT {now} AS now OFFSET 0) AS clock, unnest(
    CAST(:id AS bytea[]), CAST(:attempt AS integer[]), CAST(:token AS bytea[]), CAST(:lease AS bigint[])
) AS g(id, attempt, token, lease)
WHERE k.id = g.id AND k.id = ANY(CAST(:id AS bytea[])) AND k.attempt = g.attempt AND k.token = g.token
    AND k.state NOT IN ('completed', 'released') AND (k.state = 'claimed' OR k.advances <> {closed})
RETURNING k.id
