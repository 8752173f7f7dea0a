-- The namespaces of all records and jobs.
SELECT DISTINCT namespace FROM {keys} UNION SELECT DISTINCT namespace FROM {outbox}
