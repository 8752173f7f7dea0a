-- Insert a receipt: a completed record, in the transaction whose work it stands for. No row if the id exists, or if this
-- is not the transaction that began. A rival transaction that has not committed is not visible here: DuckDB refuses the
-- second of the two commits, with all of its work.
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
RETURNING completed
