-- A job, once: its id is made of the run and the step, so a step that is tried again stages the same job. The range
-- is locked and not the error caught: this is also said inside a user's transaction, which an error may doom.
INSERT INTO {outbox} (id, topic, payload, order_key, created, attempts, due, token, dead, error, namespace)
OUTPUT inserted.id
SELECT :id, :topic, :payload, :order_key, {now}, 0, {now}, {empty}, 0, '', :namespace
WHERE NOT EXISTS (SELECT 1 FROM {outbox} WITH (UPDLOCK, HOLDLOCK) WHERE id = :id)
