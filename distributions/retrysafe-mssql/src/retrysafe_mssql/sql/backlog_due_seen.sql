-- The records that a bounded backlog reads for what is due. It stands for the table in backlog_reapable.sql.
(
    SELECT TOP (:examine) namespace, state, expires, completed FROM {keys}
    WHERE state IN ('completed', 'released') AND expires <= {now} ORDER BY expires
) AS seen
