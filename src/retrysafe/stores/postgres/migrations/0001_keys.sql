-- One row per key. The id is a digest, compared as bytes: no collation can make two keys equal. Times are microseconds
-- since 1970. A lease is NOT NULL, so a live owner is never mistaken for one that is gone.
CREATE TABLE {keys} (
    id bytea NOT NULL PRIMARY KEY,
    namespace text NOT NULL,
    kind text NOT NULL,
    scope text NOT NULL,
    key text NOT NULL,
    target text NOT NULL,
    fingerprint text NOT NULL,
    state text NOT NULL CHECK (state IN ('claimed', 'released', 'completed', 'uncertain')),
    attempt integer NOT NULL CHECK (attempt >= 1),
    token bytea NOT NULL,
    run bytea NOT NULL,
    lease_until bigint NOT NULL,
    on_lapse text NOT NULL CHECK (on_lapse IN ('resume', 'uncertain', 'rerun')),
    point text NOT NULL,
    progress bytea NOT NULL,
    input bytea NOT NULL,
    status integer,
    headers text NOT NULL,
    body bytea NOT NULL,
    gone text NOT NULL,
    note text NOT NULL,
    created bigint NOT NULL,
    started bigint NOT NULL,
    completed bigint NOT NULL,
    expires bigint NOT NULL,
    retention bigint NOT NULL,
    CHECK ((state = 'completed') = (status IS NOT NULL))
) WITH (fillfactor = 70);

CREATE INDEX "{prefix}_open" ON {keys} (lease_until) WHERE state IN ('claimed', 'uncertain');

CREATE INDEX "{prefix}_expiring" ON {keys} (expires) WHERE state IN ('completed', 'released');
