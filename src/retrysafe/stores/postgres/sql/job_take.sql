-- Lease what is due; what another worker is taking is skipped, not waited for. Of jobs that share an order key only
-- the first may be out.
WITH ready AS MATERIALIZED (
    SELECT sequence FROM {outbox} AS each
    WHERE dead = 0 AND due <= {now} AND (order_key = '' OR NOT EXISTS (
        SELECT 1 FROM {outbox} AS earlier
        WHERE earlier.order_key = each.order_key AND earlier.dead = 0 AND earlier.sequence < each.sequence
    ))
    ORDER BY sequence LIMIT :limit FOR UPDATE SKIP LOCKED
)
UPDATE {outbox} AS job SET due = {now} + :lease, token = :token, attempts = attempts + 1
FROM ready WHERE job.sequence = ready.sequence
RETURNING job.sequence, id, topic, payload, order_key, created, attempts, due, dead, error
