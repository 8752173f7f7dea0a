-- Jobs that wait to be published, and the results of local steps when the store is another database.
CREATE TABLE IF NOT EXISTS {outbox} (
    sequence bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id varchar(255) NOT NULL UNIQUE,
    topic longtext NOT NULL,
    payload longblob NOT NULL,
    order_key varchar(500) NOT NULL,
    created bigint NOT NULL,
    attempts integer NOT NULL,
    due bigint NOT NULL,
    token varbinary(255) NOT NULL,
    take bigint unsigned NOT NULL,
    dead integer NOT NULL,
    error longtext NOT NULL,
    KEY `{prefix}_ordered` (order_key, sequence),
    KEY `{prefix}_taken` (token, take)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};

CREATE TABLE IF NOT EXISTS {receipts} (
    run varbinary(255) NOT NULL,
    step varchar(255) NOT NULL,
    result longtext NOT NULL,
    created bigint NOT NULL,
    PRIMARY KEY (run, step)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};
