-- Jobs that wait to be published, and what local steps leave behind when the store is another database.
CREATE TABLE {outbox} (
    sequence bigint IDENTITY(1, 1) NOT NULL PRIMARY KEY,
    id nvarchar(255) COLLATE {collation} NOT NULL UNIQUE,
    topic nvarchar(max) COLLATE {collation} NOT NULL,
    payload varbinary(max) NOT NULL,
    order_key nvarchar(400) COLLATE {collation} NOT NULL,
    created bigint NOT NULL,
    attempts int NOT NULL,
    due bigint NOT NULL,
    token varbinary(255) NOT NULL,
    dead int NOT NULL,
    error nvarchar(max) COLLATE {collation} NOT NULL
);

CREATE INDEX [{prefix}_ordered] ON {outbox} (order_key, sequence);

CREATE TABLE {receipts} (
    run varbinary(255) NOT NULL,
    step nvarchar(255) COLLATE {collation} NOT NULL,
    result nvarchar(max) COLLATE {collation} NOT NULL,
    created bigint NOT NULL,
    PRIMARY KEY (run, step)
);
