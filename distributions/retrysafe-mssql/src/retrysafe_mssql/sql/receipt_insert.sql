-- Insert a receipt: a completed record, in the transaction whose work it stands for. No row if the id exists, or if this
-- is not the transaction that began. The statement locks the range instead of catching the error: an error may doom the
-- user's transaction (XACT_ABORT), and that would look like a transaction that was split.
INSERT INTO {keys} ({columns})
OUTPUT inserted.completed
SELECT
    :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'completed', :attempt, :token, :run,
    {now}, 'rerun', '', {empty}, :input, :status, :headers, :body, :gone, '',
    :created, :started, {now},
    {greatest}({least}(:created + :retention, {forever}), {least}({now} + {hour}, {forever})),
    :retention, 0, {empty}
WHERE {began} = :began AND NOT EXISTS (SELECT 1 FROM {keys} WITH (UPDLOCK, HOLDLOCK) WHERE id = :id)
