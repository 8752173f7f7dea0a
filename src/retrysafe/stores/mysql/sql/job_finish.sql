-- Published: exactly these go, and only from whoever still holds them.
DELETE FROM {outbox} WHERE token = :token AND JSON_CONTAINS(:ids, JSON_QUOTE(id))
