-- Lease the jobs that are due. Of jobs that share an order key, take a run that begins with the first. Jobs that another
-- worker has locked are skipped; so a second statement returns the taken jobs that stand behind a job that was not taken.
DECLARE @taken TABLE (sequence bigint NOT NULL PRIMARY KEY);
WITH ready AS (
    SELECT TOP (:limit) * FROM {outbox} AS candidate WITH (ROWLOCK, UPDLOCK, READPAST)
    WHERE dead = 0 AND due <= {now} AND {whose candidate}
        AND {left candidate} AND {lane candidate} AND (DATALENGTH(order_key) = 0 OR NOT EXISTS (
        SELECT 1 FROM {outbox} AS earlier WITH (READCOMMITTEDLOCK)
        WHERE earlier.order_key = candidate.order_key AND {whose earlier}
            AND earlier.dead = 0 AND earlier.sequence < candidate.sequence
            AND NOT (earlier.due <= {now} AND {left earlier} AND {lane earlier})
    ))
    ORDER BY sequence
)
UPDATE ready SET due = {now} + :lease, token = :token, deliveries = deliveries + 1
OUTPUT inserted.sequence INTO @taken;
UPDATE job SET due = {now}, token = {empty}, deliveries = deliveries - 1
FROM {outbox} AS job JOIN @taken AS mine ON mine.sequence = job.sequence
WHERE DATALENGTH(job.order_key) > 0 AND EXISTS (
    SELECT 1 FROM {outbox} AS earlier WITH (READCOMMITTEDLOCK)
    WHERE earlier.order_key = job.order_key AND {whose earlier}
        AND earlier.dead = 0 AND earlier.sequence < job.sequence
        AND earlier.sequence NOT IN (SELECT sequence FROM @taken)
);
SELECT job.sequence, id, topic, payload, order_key, created, deliveries, due, dead, error, namespace
FROM {outbox} AS job JOIN @taken AS mine ON mine.sequence = job.sequence
WHERE token = :token
