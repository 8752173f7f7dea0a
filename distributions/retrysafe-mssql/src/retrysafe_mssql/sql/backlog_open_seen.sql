-- The open records that a bounded backlog reads, of all applications. It stands for the table in backlog.sql.
(
    SELECT TOP (:examine) namespace, kind, target, state, started, lease_until, on_lapse FROM {keys}
    WHERE state IN ('claimed', 'uncertain') ORDER BY lease_until
) AS seen
