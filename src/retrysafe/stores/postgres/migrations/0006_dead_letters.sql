-- For people: dead letters, in their order, among any number of jobs that wait.
SET LOCAL lock_timeout = '3s';

CREATE INDEX IF NOT EXISTS "{prefix}_dead" ON {outbox} (sequence) WHERE dead = 1;
