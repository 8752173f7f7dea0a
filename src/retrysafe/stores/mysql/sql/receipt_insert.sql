-- Insert a receipt: a completed record, in the transaction of the work. No row: the id exists by now.
INSERT /* or nothing */ INTO {keys} ({columns})
VALUES (
    :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'completed', :attempt, :token, :run,
    {now}, 'rerun', '', {empty}, :input, :status, :headers, :body, :gone, '',
    :created, :started, {now},
    {greatest}({least}(:created + :retention, {forever}), {least}({now} + {hour}, {forever})),
    :retention, 0, {empty}
);
SELECT completed FROM {keys} WHERE id = :id AND token = :token
