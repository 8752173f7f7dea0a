-- Jobs in their order; only dead ones if asked, and of one application if asked.
SELECT sequence, id, topic, payload, order_key, created, deliveries, due, dead, error, namespace FROM {outbox}
WHERE sequence > :after AND (:dead = 0 OR dead = 1) AND (:every = 1 OR namespace = :namespace)
ORDER BY sequence LIMIT :limit
