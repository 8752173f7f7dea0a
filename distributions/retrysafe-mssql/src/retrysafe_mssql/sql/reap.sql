-- Delete at most :limit expired records, an hour after their end; only a withdrawn record expires sooner. Unfinished work
-- is never deleted: it expires never. The statement locks the chosen rows, and skips rows that others have locked.
WITH expired AS (
    SELECT TOP (:limit) id FROM {keys} WITH (ROWLOCK, UPDLOCK, READPAST)
    WHERE state IN ('completed', 'released') AND expires <= {now} AND completed <= {now} - {hour}
    AND (:every = 1 OR namespace = :namespace)
    ORDER BY expires, id
)
DELETE FROM expired OUTPUT deleted.id
