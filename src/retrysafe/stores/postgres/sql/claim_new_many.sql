-- Many claims of keys that are probably new, one commit. Each inserted record is returned by its id; the claim has its other
-- columns. A claim that is not returned has a record already, which this statement neither reads nor changes: no transaction
-- id is used up for it, and it is sent again by claim_many.sql. Sorted by id as there.
INSERT INTO {keys} ({columns})
SELECT
    g.id, g.namespace, g.kind, g.scope, g.key, g.target, g.fingerprint, 'claimed', 1, g.token, g.run,
    {least}(clock.now + g.lease, {forever}), g.on_lapse, '', {empty}, g.input, NULL, '', {empty}, '', '',
    clock.now, clock.now, 0, {forever}, g.retention, 0,
    set_byte('\x00'::bytea, 0, octet_length(g.token)) || g.token
FROM (SELECT {now} AS now OFFSET 0) AS clock, unnest(
    CAST(:id AS bytea[]), CAST(:namespace AS text[]), CAST(:kind AS text[]), CAST(:scope AS text[]),
    CAST(:key AS text[]), CAST(:target AS text[]), CAST(:fingerprint AS text[]), CAST(:token AS bytea[]),
    CAST(:run AS bytea[]), CAST(:lease AS bigint[]), CAST(:retention AS bigint[]), CAST(:on_lapse AS text[]),
    CAST(:input AS bytea[])
) AS g(id, namespace, kind, scope, key, target, fingerprint, token, run, lease, retention, on_lapse, input)
ON CONFLICT (id) DO NOTHING
RETURNING id, created
