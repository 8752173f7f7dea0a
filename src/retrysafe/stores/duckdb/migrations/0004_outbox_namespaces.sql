-- Namespaces are walls: a job belongs to the application that staged it. What a release before staged has none ('').
-- `deliveries` counts what was begun; `attempts` is the release before's. There are no indexes here (0001).
ALTER TABLE {outbox} ADD COLUMN IF NOT EXISTS namespace text DEFAULT '';

ALTER TABLE {outbox} ADD COLUMN IF NOT EXISTS deliveries integer DEFAULT 0;
