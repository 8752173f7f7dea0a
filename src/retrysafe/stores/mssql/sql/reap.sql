-- At most :limit expired records go, an hour after their end: only what was withdrawn expires sooner. Unfinished work is never among them: its expires is for ever. One access: what
-- is chosen is locked, and what somebody else has locked is left for the next time.
WITH expired AS (
    SELECT TOP (:limit) id FROM {keys} WITH (ROWLOCK, UPDLOCK, READPAST)
    WHERE state IN ('completed', 'released') AND expires <= {now} AND completed <= {now} - {hour}
    AND (:every = 1 OR namespace = :namespace)
    ORDER BY expires, id
)
DELETE FROM expired OUTPUT deleted.id
