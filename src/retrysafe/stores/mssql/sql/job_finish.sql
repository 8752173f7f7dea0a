-- Published: exactly these go, and only from whoever still holds them.
WITH published AS (
    SELECT id FROM {outbox}
    WHERE token = :token AND id IN (SELECT value COLLATE Latin1_General_100_BIN2 FROM OPENJSON(:ids))
)
DELETE FROM published OUTPUT deleted.id
