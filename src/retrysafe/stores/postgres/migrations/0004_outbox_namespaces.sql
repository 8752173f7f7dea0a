-- A job belongs to the namespace that staged it. Jobs of the release before have none (''), also those that it stages while
-- it still runs beside this one. `deliveries` counts the deliveries that began; `attempts` is the count of that release.
-- An ALTER waits for every transaction that uses the table, and all others wait behind it: the timeout limits that.
SET LOCAL lock_timeout = '3s';

ALTER TABLE {outbox}
    ADD COLUMN IF NOT EXISTS namespace text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS deliveries integer NOT NULL DEFAULT 0;

-- For the worker: the next job of a topic, in its order.
CREATE INDEX IF NOT EXISTS "{prefix}_lanes" ON {outbox} (namespace, topic, sequence) WHERE dead = 0;

-- The earlier jobs of an order key.
CREATE INDEX IF NOT EXISTS "{prefix}_turns" ON {outbox} (namespace, order_key, sequence) WHERE order_key <> '' AND dead = 0;

-- Records that were released at a recovery point are unfinished work, and few among the released ones.
CREATE INDEX IF NOT EXISTS "{prefix}_resting" ON {keys} (namespace, id) WHERE state = 'released' AND point <> '';
