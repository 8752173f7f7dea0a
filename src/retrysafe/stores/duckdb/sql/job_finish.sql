-- Published: exactly these go, and only from whoever still holds them.
DELETE FROM {outbox} WHERE token = :token AND id IN (SELECT value ->> '$' FROM json_each(:ids)) RETURNING 1
