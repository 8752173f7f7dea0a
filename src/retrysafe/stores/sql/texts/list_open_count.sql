-- How many records are open, counted up to a limit.
SELECT count(*) FROM (SELECT 1 AS one FROM {keys} WHERE state IN ('claimed', 'uncertain') LIMIT :limit) AS opened
