-- Published: exactly these go, and only from whoever still holds them.
DELETE FROM {outbox}
WHERE token = :token AND id IN (SELECT json_array_elements_text(CAST(:ids AS json)))
RETURNING 1
