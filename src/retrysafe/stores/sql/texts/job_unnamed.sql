-- The number of jobs without a namespace.
SELECT count(*) FROM {outbox} WHERE namespace = ''
