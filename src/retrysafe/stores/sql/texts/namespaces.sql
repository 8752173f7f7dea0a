-- Whose records and jobs there are.
SELECT DISTINCT namespace FROM {keys} UNION SELECT DISTINCT namespace FROM {outbox}
