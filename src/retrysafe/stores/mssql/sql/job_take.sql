-- Lease what is due. Of jobs that share an order key only the first may be out. What others have locked is theirs.
WITH ready AS (
    SELECT TOP (:limit) * FROM {outbox} AS candidate WITH (ROWLOCK, UPDLOCK, READPAST)
    WHERE dead = 0 AND due <= {now} AND (DATALENGTH(order_key) = 0 OR NOT EXISTS (
        SELECT 1 FROM {outbox} AS earlier WITH (READCOMMITTEDLOCK)
        WHERE earlier.order_key = candidate.order_key AND earlier.dead = 0 AND earlier.sequence < candidate.sequence
    ))
    ORDER BY sequence
)
UPDATE ready SET due = {now} + :lease, token = :token, attempts = attempts + 1
OUTPUT inserted.sequence, inserted.id, inserted.topic, inserted.payload, inserted.order_key, inserted.created,
    inserted.attempts, inserted.due, inserted.dead, inserted.error
