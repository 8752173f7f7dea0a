-- A record's first moment, and when that was; the claim knows the rest. Says nothing (no row) when the id is taken.
INSERT INTO {keys} ({columns})
VALUES (
    :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'claimed', 1, :token, :run,
    {least}({now} + :lease, {forever}), :on_lapse, '', {empty}, :input, NULL, '', {empty}, '', '',
    {now}, {now}, 0, {forever}, :retention, 0, :tokens
)
ON CONFLICT (id) DO NOTHING
RETURNING {now}
