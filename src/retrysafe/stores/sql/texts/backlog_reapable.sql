-- What the reaper may delete: how many, and when the oldest of them expired. Read in the order of their index.
SELECT count(*), coalesce(min(expires), 0), {now}
FROM (
    SELECT expires FROM {keys}
    WHERE state IN ('completed', 'released') AND expires <= {now} AND completed <= {now} - {hour}
    AND (:every = 1 OR namespace = :namespace)
    ORDER BY expires LIMIT :limit
) AS due
