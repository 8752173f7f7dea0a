-- Lease due jobs; jobs that another worker is leasing are skipped, not waited for. Of the jobs with one order key, take an
-- unbroken run from the first on. The order is checked again for the rows that could be locked: another worker may be
-- leasing, or have leased, an earlier job. That check is made once per order key, not once per job: with 100,000 jobs of
-- one order key, the planner would read all of them for each. job_plans.py fills {lane} and {left} with fixed fragments.
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
