-- A claim's first words: insert unless it is there, then read what is there now. Who finds its own token was granted.
-- Two that insert at the same moment meet in the unique id: the second is told so (2627), and reads. No MERGE: it
-- does not keep two from inserting either, and has more ways to fail.
INSERT /* or nothing */ INTO {keys} ({columns})
SELECT
    :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'claimed', 1, :token, :run,
    {least}({now} + :lease, {forever}), :on_lapse, '', {empty}, :input, NULL, '', {empty}, '', '',
    {now}, {now}, 0, {forever}, :retention, 0, :tokens
WHERE NOT EXISTS (SELECT 1 FROM {keys} WHERE id = :id)
GO
SELECT 0, {now}, {columns} FROM {keys} WHERE id = :id
