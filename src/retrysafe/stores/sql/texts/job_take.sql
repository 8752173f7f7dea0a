-- Lease what is due. Of jobs that share an order key only the first may be out.
UPDATE {outbox} SET due = {now} + :lease, token = :token, attempts = attempts + 1
WHERE sequence IN (
    SELECT sequence FROM {outbox} AS each
    WHERE dead = 0 AND due <= {now} AND (order_key = '' OR NOT EXISTS (
        SELECT 1 FROM {outbox} AS earlier
        WHERE earlier.order_key = each.order_key AND earlier.dead = 0 AND earlier.sequence < each.sequence
    ))
    ORDER BY sequence LIMIT :limit
)
RETURNING sequence, id, topic, payload, order_key, created, attempts, due, dead, error
