-- Insert a new record and return the time of the insert; the claim has the other values. No row: the id exists.
INSERT INTO {keys} ({columns})
VALUES (
    :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'claimed', 1, :token, :run,
    {least}({now} + :lease, {forever}), :on_lapse, '', {empty}, :input, NULL, '', {empty}, '', '',
    {now}, {now}, 0, {forever}, :retention, 0, :tokens
)
ON CONFLICT (id) DO NOTHING
RETURNING {now}
