-- Jobs in their order; only dead ones if asked.
SELECT TOP (:limit) sequence, id, topic, payload, order_key, created, attempts, due, dead, error FROM {outbox}
WHERE sequence > :after AND (:dead = 0 OR dead = 1)
ORDER BY sequence
