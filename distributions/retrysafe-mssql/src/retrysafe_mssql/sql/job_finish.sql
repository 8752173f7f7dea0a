-- Delete published jobs: exactly these ids, and only if this token still holds their lease.
WITH published AS (
    SELECT id FROM {outbox}
    WHERE token = :token AND id IN (SELECT value COLLATE Latin1_General_100_BIN2 FROM OPENJSON(:ids))
)
DELETE FROM published OUTPUT deleted.id
