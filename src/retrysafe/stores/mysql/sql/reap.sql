-- At most :limit expired records go. Unfinished work is never among them: its expires is for ever.
DELETE FROM {keys}
WHERE state IN ('completed', 'released') AND expires <= {now} AND (:every = 1 OR namespace = :namespace)
ORDER BY expires, id LIMIT :limit
