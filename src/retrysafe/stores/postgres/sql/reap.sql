-- Delete at most :limit expired records, an hour after their end; only a withdrawn record expires sooner. The sub-select is
-- MATERIALIZED: inside an IN, a nested loop may run it once per row, skip the rows that it has locked itself, and so
-- delete far more than its LIMIT (observed on a fresh table).
WITH dead AS MATERIALIZED (
    SELECT id FROM {keys}
    WHERE state IN ('completed', 'released') AND expires <= {now} AND completed <= {now} - {hour}
    AND (:every = 1 OR namespace = :namespace)
    ORDER BY expires, id LIMIT :limit FOR UPDATE SKIP LOCKED
)
DELETE FROM {keys} AS k USING dead WHERE k.id = dead.id
RETURNING 1
