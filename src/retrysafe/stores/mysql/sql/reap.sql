-- Delete at most :limit expired records, an hour after their end; only a withdrawn record expires sooner. Unfinished work
-- is never among them: it expires never.
DELETE FROM {keys}
WHERE state IN ('completed', 'released') AND expires <= {now} AND completed <= {now} - {hour}
    AND (:every = 1 OR namespace = :namespace)
ORDER BY expires, id LIMIT :limit
