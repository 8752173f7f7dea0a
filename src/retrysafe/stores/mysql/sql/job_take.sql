-- Lease due jobs. Of the jobs with one order key, take an unbroken run from the first on. The update checks again that a
-- job is due, on the locked row: another worker may have taken it since it was selected. Then the jobs are returned that
-- are behind one which another worker has. The column `take` has the number of this call in the rows that it got.
SET @retrysafe_take = UUID_SHORT();
UPDATE {outbox} AS job
JOIN (
    SELECT sequence FROM {outbox} AS candidate
    WHERE dead = 0 AND due <= {now} AND {whose candidate}
        AND {left candidate} AND {lane candidate} AND (order_key = '' OR NOT EXISTS (
        SELECT 1 FROM {outbox} AS earlier
        WHERE earlier.order_key = candidate.order_key AND earlier.order_key <> '' AND {whose earlier}
            AND earlier.dead = 0 AND earlier.sequence < candidate.sequence
            AND NOT (earlier.due <= {now} AND {left earlier} AND {lane earlier})
    ))
    ORDER BY sequence LIMIT :limit
) AS ready ON job.sequence = ready.sequence
SET job.due = {now} + :lease, job.token = :token, job.deliveries = job.deliveries + 1, job.take = @retrysafe_take
WHERE job.dead = 0 AND job.due <= {now} AND {left job};
UPDATE {outbox} AS job
JOIN (
    SELECT DISTINCT mine.sequence FROM {outbox} AS mine
    JOIN {outbox} AS earlier ON earlier.order_key = mine.order_key AND {whose earlier}
        AND earlier.dead = 0 AND earlier.sequence < mine.sequence AND earlier.take <> @retrysafe_take
    WHERE mine.token = :token AND mine.take = @retrysafe_take AND mine.order_key <> ''
) AS behind ON job.sequence = behind.sequence
SET job.due = {now}, job.token = {empty}, job.deliveries = job.deliveries - 1, job.take = 0;
SELECT sequence, id, topic, payload, order_key, created, deliveries, due, dead, error, namespace FROM {outbox}
WHERE token = :token AND take = @retrysafe_take
