-- A receipt: born completed, in the transaction whose work it stands for. No row: the id was taken meanwhile, or
-- this is no longer the transaction that began. The range is locked and not the error caught: an error may doom the
-- user's transaction (XACT_ABORT), and then nobody could tell it from one that was split.
INSERT INTO {keys} ({columns})
OUTPUT inserted.completed
SELECT
    :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'completed', :attempt, :token, :run,
    {now}, 'rerun', '', {empty}, :input, :status, :headers, :body, :gone, '',
    :created, :started, {now},
    {greatest}({least}(:created + :retention, {forever}), {least}({now} + {hour}, {forever})),
    :retention, 0, {empty}
WHERE {began} = :began AND NOT EXISTS (SELECT 1 FROM {keys} WITH (UPDLOCK, HOLDLOCK) WHERE id = :id)
