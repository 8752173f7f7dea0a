-- The job was leased and not tried: this delivery does not count.
UPDATE {outbox} SET due = {now} + :delay, error = :error, token = {empty}, deliveries = deliveries - 1
WHERE id = :id AND token = :token
RETURNING 1
