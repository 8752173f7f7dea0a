-- Lease what is due. Of jobs that share an order key a run from the first one on: whoever stands behind one that cannot
-- be taken now waits for it. {lane} and {left} are put together from fixed fragments (job_plans.py).
UPDATE {outbox} SET due = {now} + :lease, token = :token, deliveries = deliveries + 1
WHERE sequence IN (
    SELECT sequence FROM {outbox} AS candidate
    WHERE dead = 0 AND due <= {now} AND {whose candidate}
        AND {left candidate} AND {lane candidate} AND (order_key = '' OR NOT EXISTS (
        SELECT 1 FROM {outbox} AS earlier
        WHERE earlier.order_key = candidate.order_key AND earlier.order_key <> '' AND {whose earlier}
            AND earlier.dead = 0 AND earlier.sequence < candidate.sequence
            AND NOT (earlier.due <= {now} AND {left earlier} AND {lane earlier})
    ))
    ORDER BY sequence LIMIT :limit
)
RETURNING sequence, id, topic, payload, order_key, created, deliveries, due, dead, error, namespace
