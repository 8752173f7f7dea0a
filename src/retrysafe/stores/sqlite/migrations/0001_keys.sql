-- One row per key. The id is a digest, so it is compared as bytes: no collation can make two keys one.
-- The checks compare one by one. With IN and three values or more, SQLite makes a temporary table for each statement that
-- writes. Files made by release 0.1 have the same checks written with IN.
CREATE TABLE {keys} (
    id blob NOT NULL PRIMARY KEY,
    namespace text NOT NULL,
    kind text NOT NULL,
    scope text NOT NULL,
    key text NOT NULL,
    target text NOT NULL,
    fingerprint text NOT NULL,
    state text NOT NULL CHECK (state = 'claimed' OR state = 'completed' OR state = 'released' OR state = 'uncertain'),
    attempt integer NOT NULL CHECK (attempt >= 1),
    token blob NOT NULL,
    run blob NOT NULL,
    lease_until integer NOT NULL,
    on_lapse text NOT NULL CHECK (on_lapse = 'uncertain' OR on_lapse = 'rerun' OR on_lapse = 'resume'),
    point text NOT NULL,
    progress blob NOT NULL,
    input blob NOT NULL,
    status integer,
    headers text NOT NULL,
    body blob NOT NULL,
    gone text NOT NULL,
    note text NOT NULL,
    created integer NOT NULL,
    started integer NOT NULL,
    completed integer NOT NULL,
    expires integer NOT NULL,
    retention integer NOT NULL,
    CHECK ((state = 'completed') = (status IS NOT NULL))
);

CREATE INDEX "{prefix}_open" ON {keys} (lease_until) WHERE state IN ('claimed', 'uncertain');

CREATE INDEX "{prefix}_expiring" ON {keys} (expires) WHERE state IN ('completed', 'released');
