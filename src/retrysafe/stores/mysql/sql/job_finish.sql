-- The jobs were published: delete exactly these ids, and only jobs that this worker still has leased.
DELETE FROM {outbox} WHERE token = :token AND JSON_CONTAINS(:ids, JSON_QUOTE(id))
