-- The jobs were published: delete exactly these ids, and only jobs that this worker still has leased.
DELETE FROM {outbox} WHERE token = :token AND id IN (SELECT value FROM json_each(:ids)) RETURNING 1
