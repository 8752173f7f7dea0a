-- Many releases, one commit. A record that is released at a recovery point never expires (I13).
UPDATE {keys} AS k SET
    state = 'released', lease_until = clock.now, status = NULL, headers = '', body = {empty}, gone = '',
    note = g.note, completed = clock.now,
    expires = CASE WHEN k.point <> '' THEN {forever} ELSE
        {greatest}({least}(k.created + k.retention, {forever}), {least}(clock.now + {hour}, {forever})) END
FROM (SELECT {now} AS now OFFSET 0) AS clock, unnest(
    CAST(:id AS bytea[]), CAST(:attempt AS integer[]), CAST(:token AS bytea[]), CAST(:note AS text[])
) AS g(id, attempt, token, note)
WHERE k.id = g.id AND k.id = ANY(CAST(:id AS bytea[])) AND k.attempt = g.attempt AND k.token = g.token
    AND k.state NOT IN ('completed', 'released')
RETURNING k.id
