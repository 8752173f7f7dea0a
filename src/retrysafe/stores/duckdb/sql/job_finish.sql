-- Delete published jobs: exactly these ids, and only if this token still holds their lease.
DELETE FROM {outbox} WHERE token = :token AND id IN (SELECT value ->> '$' FROM json_each(:ids)) RETURNING 1
