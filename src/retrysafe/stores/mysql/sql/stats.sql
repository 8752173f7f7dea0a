-- The number of records in each state.
SELECT
    count(CASE WHEN state = 'claimed' THEN 1 END),
    count(CASE WHEN state = 'released' THEN 1 END),
    count(CASE WHEN state = 'completed' THEN 1 END),
    count(CASE WHEN state = 'uncertain' THEN 1 END),
    count(CASE WHEN state = 'claimed' AND lease_until <= {now} THEN 1 END),
    count(CASE WHEN state IN ('completed', 'released') AND expires <= {now} AND completed <= {now} - {hour} THEN 1 END),
    {now}
FROM {keys}
WHERE :every = 1 OR namespace = :namespace
