-- Stage a job once: its id is made of the run and the step, so a retried step stages the same job. The statement locks
-- the range instead of catching the error: it also runs inside a user's transaction, which an error may doom.
INSERT INTO {outbox} (id, topic, payload, order_key, created, attempts, due, token, dead, error, namespace)
OUTPUT inserted.id
SELECT :id, :topic, :payload, :order_key, {now}, 0, {now}, {empty}, 0, '', :namespace
WHERE NOT EXISTS (SELECT 1 FROM {outbox} WITH (UPDLOCK, HOLDLOCK) WHERE id = :id)
