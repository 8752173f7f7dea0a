-- The number of records in each state.
SELECT
    count(*) FILTER (WHERE state = 'claimed'),
    count(*) FILTER (WHERE state = 'released'),
    count(*) FILTER (WHERE state = 'completed'),
    count(*) FILTER (WHERE state = 'uncertain'),
    count(*) FILTER (WHERE state = 'claimed' AND lease_until <= {now}),
    count(*) FILTER (WHERE state IN ('completed', 'released') AND expires <= {now} AND completed <= {now} - {hour}),
    {now}
FROM {keys}
WHERE :every = 1 OR namespace = :namespace
