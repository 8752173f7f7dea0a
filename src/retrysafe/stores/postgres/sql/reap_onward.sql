-- Delete at most :limit expired records, an hour after their end; only a withdrawn record expires sooner. They are read in the
-- order of their index, from :onward on: the entries of what was deleted before stay there until the next VACUUM, and a batch
-- that begins at the start walks over all of them. A row is found again by its place, not by its id: the index of the ids is
-- in random order. The row is locked, so its place cannot change. The last condition says the same as the inner ones: what
-- has not expired stays, whatever the place holds. `+ 0` keeps the planner from reading the index of `expires` again.
DELETE FROM {keys}
WHERE expires + 0 <= {now} AND ctid = ANY (ARRAY (
    SELECT ctid FROM {keys}
    WHERE state IN ('completed', 'released') AND expires <= {now} AND completed <= {now} - {hour}
    AND expires >= :onward AND (:every = 1 OR namespace = :namespace)
    ORDER BY expires LIMIT :limit FOR UPDATE SKIP LOCKED
))
RETURNING expires
