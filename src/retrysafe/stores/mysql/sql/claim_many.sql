-- Many claims as one statement (insert.sql). The number of rows says how many were born. Without FORCE INDEX, the planner
-- reads all of a table that was small a moment ago.
INSERT INTO {keys} ({columns})
SELECT
    g.id, g.namespace, g.kind, g.scope, g.`key`, g.target, g.fingerprint, 'claimed', 1, g.token, g.run,
    {least}(@retrysafe_now + g.lease, {forever}), g.on_lapse, '', {empty}, g.input, NULL, '', {empty}, '', '',
    @retrysafe_now, CAST(LAST_INSERT_ID(@retrysafe_now) AS SIGNED), 0, {forever}, g.retention, 0,
    CONCAT(CHAR(LENGTH(g.token)), g.token)
FROM ({rows}) AS g
WHERE NOT EXISTS (SELECT 1 FROM {keys} AS k FORCE INDEX (PRIMARY) WHERE k.id = g.id)
