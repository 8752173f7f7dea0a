-- List jobs in their order: all, or those of one application.
SELECT TOP (:limit) sequence, id, topic, payload, order_key, created, deliveries, due, dead, error, namespace
FROM {outbox}
WHERE sequence > :after AND (:every = 1 OR namespace = :namespace)
ORDER BY sequence
