-- The open records by kind and target, with the start of the oldest. The inner order is that of the index of open records:
-- whatever the limit is, the rows that are read contain what has lapsed.
SELECT
    kind, target,
    sum(CASE WHEN unknown = 0 THEN 1 ELSE 0 END),
    sum(CASE WHEN unknown = 0 AND lapsed = 1 THEN 1 ELSE 0 END),
    sum(unknown),
    sum(CASE WHEN unknown = 1 AND state = 'claimed' THEN 1 ELSE 0 END),
    coalesce(min(CASE WHEN unknown = 0 THEN started END), 0),
    coalesce(min(CASE WHEN unknown = 1 THEN started END), 0)
FROM (
    SELECT kind, target, state, started,
        CASE WHEN lease_until <= {now} THEN 1 ELSE 0 END AS lapsed,
        CASE WHEN state = 'uncertain' OR (lease_until <= {now} AND on_lapse = 'uncertain') THEN 1 ELSE 0 END AS unknown
    FROM {keys}
    WHERE state IN ('claimed', 'uncertain') AND (:every = 1 OR namespace = :namespace)
    ORDER BY lease_until LIMIT :limit
) AS opened
GROUP BY kind, target
ORDER BY kind, target
