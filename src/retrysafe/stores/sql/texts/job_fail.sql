-- The job was not published: it is due again later, or it is a dead letter.
UPDATE {outbox} SET due = {now} + :delay, dead = :dead, error = :error, token = {empty}
WHERE id = :id AND token = :token
RETURNING 1
