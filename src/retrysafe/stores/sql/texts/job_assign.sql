-- A person assigns the jobs without a namespace to one.
UPDATE {outbox} SET namespace = :namespace WHERE namespace = ''
RETURNING 1
