-- Lease what is due; what another worker is taking is skipped, not waited for. Of jobs that share an order key a run
-- from the first one on. It is asked once more of what could be locked: another worker may just be taking, or have
-- taken, one that stands before. That is asked once for each order, not for each job: where 100,000 jobs have one order
-- the planner reads them all for each. {lane} and {left} are put together from fixed fragments (job_plans.py).
WITH ready AS MATERIALIZED (
    SELECT sequence, order_key FROM {outbox} AS candidate
    WHERE dead = 0 AND due <= {now} AND {whose candidate}
        AND {left candidate} AND {lane candidate} AND (order_key = '' OR NOT EXISTS (
        SELECT 1 FROM {outbox} AS earlier
        WHERE earlier.order_key = candidate.order_key AND earlier.order_key <> '' AND {whose earlier}
            AND earlier.dead = 0 AND earlier.sequence < candidate.sequence
            AND NOT (earlier.due <= {now} AND {left earlier} AND {lane earlier})
    ))
    ORDER BY sequence LIMIT :limit FOR UPDATE SKIP LOCKED
),
ends AS MATERIALIZED (
    SELECT orders.order_key, (
        SELECT earlier.sequence FROM {outbox} AS earlier
        WHERE earlier.order_key = orders.order_key AND earlier.order_key <> '' AND {whose earlier}
            AND earlier.dead = 0 AND earlier.sequence NOT IN (SELECT each.sequence FROM ready AS each)
        ORDER BY earlier.sequence LIMIT 1
    ) AS sequence
    FROM (SELECT DISTINCT order_key FROM ready WHERE order_key <> '') AS orders
)
UPDATE {outbox} AS job SET due = {now} + :lease, token = :token, deliveries = deliveries + 1
FROM ready LEFT JOIN ends ON ends.order_key = ready.order_key
WHERE job.sequence = ready.sequence AND (ends.sequence IS NULL OR job.sequence < ends.sequence)
RETURNING job.sequence, id, topic, payload, job.order_key, created, deliveries, due, dead, error, namespace
