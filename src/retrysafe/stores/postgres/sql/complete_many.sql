-- Many answers, one commit. `id = ANY` beside the join: without it, a plan made for a small table reads the whole table
-- or its index. The states are excluded by inequality: with equality, the planner would read the whole index of open
-- records.
UPDATE {keys} AS k SET
    state = 'completed', lease_until = clock.now, status = g.status, headers = g.headers, body = g.body, gone = g.gone,
    note = '', completed = clock.now,
    expires = {greatest}({least}(k.created + k.retention, {forever}), {least}(clock.now + {hour}, {forever}))
FROM (SELECT {now} AS now OFFSET 0) AS clock, unnest(
    CAST(:id AS bytea[]), CAST(:attempt AS integer[]), CAST(:token AS bytea[]), CAST(:status AS integer[]),
    CAST(:headers AS text[]), CAST(:body AS bytea[]), CAST(:gone AS text[])
) AS g(id, attempt, token, status, headers, body, gone)
WHERE k.id = g.id AND k.id = ANY(CAST(:id AS bytea[])) AND k.attempt = g.attempt AND k.token = g.token
    AND k.state NOT IN ('completed', 'released')
RETURNING k.id
