-- Taken and not tried: it does not count.
UPDATE {outbox} SET due = {now} + :delay, error = :error, token = {empty}, deliveries = deliveries - 1
WHERE id = :id AND token = :token
RETURNING 1
