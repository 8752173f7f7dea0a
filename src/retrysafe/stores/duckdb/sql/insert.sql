-- Insert a new record, and return when it was created; the claim knows the other values. No row if the id exists.
-- RETURNING names a column: DuckDB binds no values there.
INSERT INTO {keys} ({columns})
VALUES (
    :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'claimed', 1, :token, :run,
    {least}({now} + :lease, {forever}), :on_lapse, '', {empty}, :input, NULL, '', {empty}, '', '',
    {now}, {now}, 0, {forever}, :retention, 0, :tokens
)
ON CONFLICT (id) DO NOTHING
RETURNING started
