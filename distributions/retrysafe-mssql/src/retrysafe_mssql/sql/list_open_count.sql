-- How many records are open, counted up to a limit.
SELECT count(*) FROM (SELECT TOP (:limit) 1 AS one FROM {keys} WHERE state IN ('claimed', 'uncertain')) AS opened
