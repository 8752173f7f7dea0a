-- Jobs in their order; optionally only those of one namespace.
SELECT sequence, id, topic, payload, order_key, created, deliveries, due, dead, error, namespace FROM {outbox}
WHERE sequence > :after AND (:every = 1 OR namespace = :namespace)
ORDER BY sequence LIMIT :limit
