-- A person asks for another try of a dead letter.
UPDATE {outbox} SET dead = 0, due = {now}, attempts = 0, deliveries = 0, error = ''
WHERE id = :id AND dead = 1 AND namespace = :namespace
RETURNING 1
