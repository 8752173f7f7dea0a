-- At most :limit expired records go, an hour after their end: only what was withdrawn expires sooner. The sub-select is MATERIALIZED: inside an IN it may be run once per row by a
-- nested loop, skip what it has locked itself, and so delete far more than its LIMIT (seen on a fresh table).
WITH dead AS MATERIALIZED (
    SELECT id FROM {keys}
    WHERE state IN ('completed', 'released') AND expires <= {now} AND completed <= {now} - {hour}
    AND (:every = 1 OR namespace = :namespace)
    ORDER BY expires, id LIMIT :limit FOR UPDATE SKIP LOCKED
)
DELETE FROM {keys} AS k USING dead WHERE k.id = dead.id
RETURNING 1
