-- Jobs that wait to be published, and what local steps leave behind when the store is another database.
CREATE SEQUENCE "{prefix}_sequence";

CREATE TABLE {outbox} (
    sequence bigint NOT NULL DEFAULT nextval('"{prefix}_sequence"'),
    id text NOT NULL PRIMARY KEY,
    topic text NOT NULL,
    payload blob NOT NULL,
    order_key text NOT NULL,
    created bigint NOT NULL,
    attempts integer NOT NULL,
    due bigint NOT NULL,
    token blob NOT NULL,
    dead integer NOT NULL,
    error text NOT NULL
);

CREATE TABLE {receipts} (
    run blob NOT NULL,
    step text NOT NULL,
    result text NOT NULL,
    created bigint NOT NULL,
    PRIMARY KEY (run, step)
);
