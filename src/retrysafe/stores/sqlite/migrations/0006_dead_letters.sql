-- For people: dead letters, in their order, among any number of jobs that wait.
CREATE INDEX "{prefix}_dead" ON {outbox} (sequence) WHERE dead = 1;
