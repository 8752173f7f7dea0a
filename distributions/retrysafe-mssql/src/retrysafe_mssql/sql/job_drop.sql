-- A person deletes a job that is not to be delivered. No worker may have it: a job whose lease ran out has none.
DELETE FROM {outbox} OUTPUT deleted.id
WHERE id = :id AND dead = :dead AND namespace = :namespace AND (token = {empty} OR due <= {now})
