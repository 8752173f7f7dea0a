-- Many claims, one commit. Sorted by id, so that two batches that share keys wait for each other in the same order.
-- A key without a row in the reply was inserted by somebody else meanwhile; one that may be taken over needs a
-- second look: both go by the plain way afterwards. The wait for an uncommitted rival is short here, because
-- everybody in the batch waits along.
WITH patience AS (
    SELECT set_config('lock_timeout', '100', true)
), fresh AS (
    INSERT INTO {keys} ({columns})
    SELECT
        g.id, g.namespace, g.kind, g.scope, g.key, g.target, g.fingerprint, 'claimed', 1, g.token, g.run,
        {least}({now} + g.lease, {forever}), g.on_lapse, '', {empty}, g.input, NULL, '', {empty}, '', '',
        {now}, {now}, 0, {forever}, g.retention
    FROM patience, unnest(
        CAST(:id AS bytea[]), CAST(:namespace AS text[]), CAST(:kind AS text[]), CAST(:scope AS text[]),
        CAST(:key AS text[]), CAST(:target AS text[]), CAST(:fingerprint AS text[]), CAST(:token AS bytea[]),
        CAST(:run AS bytea[]), CAST(:lease AS bigint[]), CAST(:retention AS bigint[]), CAST(:on_lapse AS text[]),
        CAST(:input AS bytea[])
    ) AS g(id, namespace, kind, scope, key, target, fingerprint, token, run, lease, retention, on_lapse, input)
    ORDER BY g.id
    ON CONFLICT (id) DO NOTHING
    RETURNING {columns}
)
SELECT true, {now}, {columns} FROM fresh
UNION ALL
SELECT false, {now}, {columns} FROM {keys} WHERE id = ANY(CAST(:id AS bytea[]))
