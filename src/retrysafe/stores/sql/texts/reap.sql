-- At most :limit expired records go, an hour after their end: only what was withdrawn expires sooner. Unfinished work is never among them: its expires is for ever.
DELETE FROM {keys}
WHERE id IN (
    SELECT id FROM {keys}
    WHERE state IN ('completed', 'released') AND expires <= {now} AND completed <= {now} - {hour}
    AND (:every = 1 OR namespace = :namespace)
    ORDER BY expires, id LIMIT :limit
)
RETURNING 1
