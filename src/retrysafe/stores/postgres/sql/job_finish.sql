-- The jobs were published: delete exactly these ids, and only jobs that this worker still has leased.
DELETE FROM {outbox}
WHERE token = :token AND id IN (SELECT json_array_elements_text(CAST(:ids AS json)))
RETURNING 1
