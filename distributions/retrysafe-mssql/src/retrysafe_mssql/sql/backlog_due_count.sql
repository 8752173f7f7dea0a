-- How many settled records have expired, counted up to a limit.
SELECT count(*) FROM (
    SELECT TOP (:limit) 1 AS one FROM {keys} WHERE state IN ('completed', 'released') AND expires <= {now}
) AS due
