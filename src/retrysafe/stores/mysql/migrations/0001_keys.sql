-- One row per key. The id is a digest, compared as bytes: no collation can make two keys equal. The texts have a collation
-- that neither folds case nor ignores trailing spaces (utf8mb4_bin ignores them; the right one has different names in
-- MySQL and MariaDB). Times are microseconds since 1970. The columns are wide, because a session that is not strict would
-- cut longer values silently.
CREATE TABLE IF NOT EXISTS {keys} (
    id varbinary(32) NOT NULL PRIMARY KEY,
    namespace longtext NOT NULL,
    kind longtext NOT NULL,
    scope longtext NOT NULL,
    `key` longtext NOT NULL,
    target longtext NOT NULL,
    fingerprint longtext NOT NULL,
    state varchar(16) NOT NULL CHECK (state IN ('claimed', 'released', 'completed', 'uncertain')),
    attempt integer NOT NULL CHECK (attempt >= 1),
    token varbinary(255) NOT NULL,
    run varbinary(255) NOT NULL,
    lease_until bigint NOT NULL,
    on_lapse varchar(16) NOT NULL CHECK (on_lapse IN ('resume', 'uncertain', 'rerun')),
    point longtext NOT NULL,
    progress longblob NOT NULL,
    input longblob NOT NULL,
    status integer,
    headers longtext NOT NULL,
    body longblob NOT NULL,
    gone longtext NOT NULL,
    note longtext NOT NULL,
    created bigint NOT NULL,
    started bigint NOT NULL,
    completed bigint NOT NULL,
    expires bigint NOT NULL,
    retention bigint NOT NULL,
    CHECK ((state = 'completed') = (status IS NOT NULL)),
    KEY `{prefix}_open` (state, lease_until),
    KEY `{prefix}_expiring` (state, expires)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};
