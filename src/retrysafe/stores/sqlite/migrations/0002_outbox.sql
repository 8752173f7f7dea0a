-- Jobs that wait to be published, and what local steps leave behind when the store is another database.
CREATE TABLE {outbox} (
    sequence integer PRIMARY KEY AUTOINCREMENT,
    id text NOT NULL UNIQUE,
    topic text NOT NULL,
    payload blob NOT NULL,
    order_key text NOT NULL,
    created integer NOT NULL,
    attempts integer NOT NULL,
    due integer NOT NULL,
    token blob NOT NULL,
    dead integer NOT NULL,
    error text NOT NULL
);

CREATE INDEX "{prefix}_ordered" ON {outbox} (order_key, sequence) WHERE order_key <> '';

CREATE TABLE {receipts} (
    run blob NOT NULL,
    step text NOT NULL,
    result text NOT NULL,
    created integer NOT NULL,
    PRIMARY KEY (run, step)
);
