-- A person says: try that one again.
UPDATE {outbox} SET dead = 0, due = {now}, attempts = 0, error = '' WHERE id = :id AND dead = 1 RETURNING 1
