-- One row per key. The id is a digest, compared as bytes: no collation can make two keys one. The texts have one that
-- folds nothing. Times are microseconds since 1970.
CREATE TABLE {keys} (
    id varbinary(32) NOT NULL PRIMARY KEY,
    namespace nvarchar(max) COLLATE {collation} NOT NULL,
    kind nvarchar(max) COLLATE {collation} NOT NULL,
    scope nvarchar(max) COLLATE {collation} NOT NULL,
    [key] nvarchar(max) COLLATE {collation} NOT NULL,
    target nvarchar(max) COLLATE {collation} NOT NULL,
    fingerprint nvarchar(max) COLLATE {collation} NOT NULL,
    state varchar(16) COLLATE {collation} NOT NULL CHECK (state IN ('claimed', 'released', 'completed', 'uncertain')),
    attempt int NOT NULL CHECK (attempt >= 1),
    token varbinary(255) NOT NULL,
    run varbinary(255) NOT NULL,
    lease_until bigint NOT NULL,
    on_lapse varchar(16) COLLATE {collation} NOT NULL CHECK (on_lapse IN ('resume', 'uncertain', 'rerun')),
    point nvarchar(max) COLLATE {collation} NOT NULL,
    progress varbinary(max) NOT NULL,
    input varbinary(max) NOT NULL,
    status int NULL,
    headers nvarchar(max) COLLATE {collation} NOT NULL,
    body varbinary(max) NOT NULL,
    gone nvarchar(max) COLLATE {collation} NOT NULL,
    note nvarchar(max) COLLATE {collation} NOT NULL,
    created bigint NOT NULL,
    started bigint NOT NULL,
    completed bigint NOT NULL,
    expires bigint NOT NULL,
    retention bigint NOT NULL,
    CHECK ((state = 'completed' AND status IS NOT NULL) OR (state <> 'completed' AND status IS NULL))
);

CREATE INDEX [{prefix}_open] ON {keys} (state, lease_until);

CREATE INDEX [{prefix}_expiring] ON {keys} (state, expires);
