-- One row per key. The id is a digest, compared as bytes: no collation can make two keys one.
-- There is no other index: DuckDB writes a row anew when an indexed column of it changes, and then two changes of one
-- row can meet in the index. Lists and sweeps read columns, which is what it is good at.
CREATE TABLE {keys} (
    id blob NOT NULL PRIMARY KEY,
    namespace text NOT NULL,
    kind text NOT NULL,
    scope text NOT NULL,
    key text NOT NULL,
    target text NOT NULL,
    fingerprint text NOT NULL,
    state text NOT NULL CHECK (state IN ('claimed', 'released', 'completed', 'uncertain')),
    attempt integer NOT NULL CHECK (attempt >= 1),
    token blob NOT NULL,
    run blob NOT NULL,
    lease_until bigint NOT NULL,
    on_lapse text NOT NULL CHECK (on_lapse IN ('resume', 'uncertain', 'rerun')),
    point text NOT NULL,
    progress blob NOT NULL,
    input blob NOT NULL,
    status integer,
    headers text NOT NULL,
    body blob NOT NULL,
    gone text NOT NULL,
    note text NOT NULL,
    created bigint NOT NULL,
    started bigint NOT NULL,
    completed bigint NOT NULL,
    expires bigint NOT NULL,
    retention bigint NOT NULL,
    CHECK ((state = 'completed') = (status IS NOT NULL))
);
