-- Many claims, one commit. They are sorted by id, so that two batches that share keys lock rows in the same order. The
-- first column is the number of inserted records; an inserted record needs no columns, because the claim has them all.
-- Each claim that was not inserted has a row with its id: with the record that is there, or without columns if another
-- transaction inserted it after our snapshot. If all were inserted, there is one row without an id. A record that may be
-- taken over, and one that could not be read, are claimed one by one afterwards.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now
), fresh AS (
    INSERT INTO {keys} ({columns})
    SELECT
        g.id, g.namespace, g.kind, g.scope, g.key, g.target, g.fingerprint, 'claimed', 1, g.token, g.run,
        {least}(clock.now + g.lease, {forever}), g.on_lapse, '', {empty}, g.input, NULL, '', {empty}, '', '',
        clock.now, clock.now, 0, {forever}, g.retention, 0,
        set_byte('\x00'::bytea, 0, octet_length(g.token)) || g.token
    FROM clock, unnest(
        CAST(:id AS bytea[]), CAST(:namespace AS text[]), CAST(:kind AS text[]), CAST(:scope AS text[]),
        CAST(:key AS text[]), CAST(:target AS text[]), CAST(:fingerprint AS text[]), CAST(:token AS bytea[]),
        CAST(:run AS bytea[]), CAST(:lease AS bigint[]), CAST(:retention AS bigint[]), CAST(:on_lapse AS text[]),
        CAST(:input AS bytea[])
    ) AS g(id, namespace, kind, scope, key, target, fingerprint, token, run, lease, retention, on_lapse, input)
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
SELECT (SELECT count(*) FROM fresh), clock.now, taken.id, found.*
FROM clock
LEFT JOIN (
    SELECT asked.id FROM unnest(CAST(:id AS bytea[])) AS asked(id) WHERE asked.id NOT IN (SELECT id FROM fresh)
) AS taken ON true
LEFT JOIN LATERAL (
    SELECT {columns} FROM {keys} AS k WHERE k.id = taken.id LIMIT 1
) AS found ON true
