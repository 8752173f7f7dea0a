-- Namespaces are walls: a job belongs to the application that staged it. What a release before staged has none (''), and
-- so has what one stages that still runs beside. `deliveries` counts what was begun; `attempts` is the release before's.
-- An ALTER waits for every transaction that has touched the table, and everybody waits behind it: not for long.
SET LOCAL lock_timeout = '3s';

ALTER TABLE {outbox}
    ADD COLUMN IF NOT EXISTS namespace text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS deliveries integer NOT NULL DEFAULT 0;

-- The worker's way: the next job of a topic, in its order.
CREATE INDEX IF NOT EXISTS "{prefix}_lanes" ON {outbox} (namespace, topic, sequence) WHERE dead = 0;

-- Who stands before a job in its order.
CREATE INDEX IF NOT EXISTS "{prefix}_turns" ON {outbox} (namespace, order_key, sequence) WHERE order_key <> '' AND dead = 0;

-- What was released at a recovery point is unfinished work, and rare among what was released.
CREATE INDEX IF NOT EXISTS "{prefix}_resting" ON {keys} (namespace, id) WHERE state = 'released' AND point <> '';
