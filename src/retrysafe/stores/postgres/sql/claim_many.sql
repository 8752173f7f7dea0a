-- Many claims, one commit. Sorted by id, so that two batches that share keys wait for each other in the same order.
-- One row comes back for each id: granted, or what is there, or neither (inserted by somebody else meanwhile). A
-- granted birth needs no columns: the claim has them all. What may be taken over needs a second look and goes by the
-- plain way afterwards, as does what nobody could be told about. The wait for an uncommitted rival is short here,
-- because everybody in the batch waits along.
-- The lookup is one row at a time on purpose: joined as sets, a plan made while the table was small (and kept, because
-- the statement is prepared) would read the whole table for each batch.
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
    RETURNING id
)
SELECT fresh.id IS NOT NULL, {now}, asked.id, found.*
FROM unnest(CAST(:id AS bytea[])) AS asked(id)
LEFT JOIN fresh ON fresh.id = asked.id
LEFT JOIN LATERAL (
    SELECT {columns} FROM {keys} AS k WHERE k.id = asked.id AND fresh.id IS NULL LIMIT 1
) AS found ON true
