-- The records that a bounded backlog reads for what is due. It stands for the table in backlog_reapable.sql.
(
    SELECT namespace, state, expires, completed FROM {keys}
    WHERE state IN ('completed', 'released') AND expires <= {now} ORDER BY expires LIMIT :examine
) AS seen
