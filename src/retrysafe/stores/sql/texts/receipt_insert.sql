-- Insert a receipt: a completed record, in the transaction of the work. No row: the id exists by now, or this is not the
-- transaction that began.
INSERT INTO {keys} ({columns})
SELECT
    :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'completed', :attempt, :token, :run,
    {now}, 'rerun', '', {empty}, :input, :status, :headers, :body, :gone, '',
    CAST(:created AS bigint), CAST(:started AS bigint), {now},
    {greatest}(
        {least}(CAST(:created AS bigint) + CAST(:retention AS bigint), {forever}), {least}({now} + {hour}, {forever})
    ),
    CAST(:retention AS bigint), 0, {empty}
WHERE {began} = :began
ON CONFLICT (id) DO NOTHING
RETURNING {now}
