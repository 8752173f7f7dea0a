-- The first statements of a claim: insert unless the id exists, then read the record. The claim whose token is in the
-- record was granted. NOT EXISTS is a plain read at READ COMMITTED, so a replay takes no lock, waits for no transaction
-- and writes nothing. Two inserts at the same moment meet in the unique id: the second fails, and reads.
INSERT /* or nothing */ INTO {keys} ({columns})
SELECT
    :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'claimed', 1, :token, :run,
    {least}({now} + :lease, {forever}), :on_lapse, '', {empty}, :input, NULL, '', {empty}, '', '',
    {now}, {now}, 0, {forever}, :retention, 0, :tokens
FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM {keys} WHERE id = :id);
SELECT 0, {now}, {columns} FROM {keys} WHERE id = :id
