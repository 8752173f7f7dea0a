-- A person deletes a job that is not to be delivered. No worker may have it: a job whose lease ran out has none.
WITH unwanted AS (
    SELECT id FROM {outbox}
    WHERE id = :id AND dead = :dead AND namespace = :namespace AND (token = {empty} OR due <= {now})
)
DELETE FROM unwanted OUTPUT deleted.id
