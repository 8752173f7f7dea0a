-- The jobs by topic: how many wait, how many are dead, and when the oldest of each was staged. Published jobs are gone, so
-- the outbox holds only what is open.
SELECT
    topic,
    sum(CASE WHEN dead = 0 THEN 1 ELSE 0 END),
    coalesce(min(CASE WHEN dead = 0 THEN created END), 0),
    sum(CASE WHEN dead = 1 THEN 1 ELSE 0 END),
    coalesce(min(CASE WHEN dead = 1 THEN created END), 0)
FROM (
    SELECT * FROM (
        SELECT TOP (:limit) topic, dead, created FROM {outbox}
        WHERE dead = 0 AND (:every = 1 OR namespace = :namespace) ORDER BY sequence
    ) AS waiting
    UNION ALL
    SELECT * FROM (
        SELECT TOP (:limit) topic, dead, created FROM {outbox}
        WHERE dead = 1 AND (:every = 1 OR namespace = :namespace) ORDER BY sequence
    ) AS dead_letters
) AS jobs
GROUP BY topic
ORDER BY topic
