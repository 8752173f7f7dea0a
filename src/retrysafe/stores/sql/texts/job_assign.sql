-- A person says whose the jobs without a namespace are.
UPDATE {outbox} SET namespace = :namespace WHERE namespace = ''
RETURNING 1
