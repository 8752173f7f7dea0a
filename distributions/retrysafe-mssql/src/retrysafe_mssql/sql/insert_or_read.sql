-- The first statement of a claim: insert the record if it does not exist, then read what exists now. A claim that reads
-- its own token was granted. Of two inserts at the same moment the second fails on the unique id (2627) and then reads.
-- MERGE is not used: it does not prevent two inserts either, and has more ways to fail.
INSERT /* or nothing */ INTO {keys} ({columns})
SELECT
    :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'claimed', 1, :token, :run,
    {least}({now} + :lease, {forever}), :on_lapse, '', {empty}, :input, NULL, '', {empty}, '', '',
    {now}, {now}, 0, {forever}, :retention, 0, :tokens
WHERE NOT EXISTS (SELECT 1 FROM {keys} WHERE id = :id)
GO
SELECT 0, {now}, {columns} FROM {keys} WHERE id = :id
