-- A receipt: born completed, in the transaction whose work it stands for. No row: the id was taken meanwhile.
INSERT /* or nothing */ INTO {keys} ({columns})
VALUES (
    :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'completed', :attempt, :token, :run,
    {now}, 'rerun', '', {empty}, :input, :status, :headers, :body, :gone, '',
    :created, :started, {now},
    {greatest}({least}(:created + :retention, {forever}), {least}({now} + {hour}, {forever})),
    :retention, 0, {empty}
);
SELECT completed FROM {keys} WHERE id = :id AND token = :token
