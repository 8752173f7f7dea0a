-- Lease what is due. Of jobs that share an order key only the first may be out. What is due is asked once more by the
-- update itself, on the row as it stands when its lock is held: another worker may have taken it since it was chosen.
-- The number of this taking tells which rows it got.
SET @retrysafe_take = UUID_SHORT();
UPDATE {outbox} AS job
JOIN (
    SELECT sequence FROM {outbox} AS candidate
    WHERE dead = 0 AND due <= {now} AND (order_key = '' OR NOT EXISTS (
        SELECT 1 FROM {outbox} AS earlier
        WHERE earlier.order_key = candidate.order_key AND earlier.dead = 0 AND earlier.sequence < candidate.sequence
    ))
    ORDER BY sequence LIMIT :limit
) AS ready ON job.sequence = ready.sequence
SET job.due = {now} + :lease, job.token = :token, job.attempts = job.attempts + 1, job.take = @retrysafe_take
WHERE job.dead = 0 AND job.due <= {now};
SELECT sequence, id, topic, payload, order_key, created, attempts, due, dead, error FROM {outbox}
WHERE token = :token AND take = @retrysafe_take
