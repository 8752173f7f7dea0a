-- A person asks for the next delivery of a waiting job now. No worker may have it: a job whose lease ran out has none.
UPDATE {outbox} SET due = {now}
WHERE id = :id AND dead = 0 AND namespace = :namespace AND (token = {empty} OR due <= {now})
RETURNING 1
