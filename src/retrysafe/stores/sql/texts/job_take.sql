-- Lease due jobs. Of the jobs with one order key, take an unbroken run from the first on: a job behind one that cannot be
-- taken now must wait. job_plans.py fills {lane} and {left} with fixed fragments.
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
