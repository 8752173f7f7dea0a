-- A claim's first words: insert unless it is there, then read what is there now. Who finds its own token was granted.
-- NOT EXISTS is a plain read at READ COMMITTED, so a replay takes no lock, waits for nobody and writes nothing. Two
-- that insert at the same moment meet in the unique id: the second is told so, and reads.
INSERT /* or nothing */ INTO {keys} ({columns})
SELECT
    :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'claimed', 1, :token, :run,
    {least}({now} + :lease, {forever}), :on_lapse, '', {empty}, :input, NULL, '', {empty}, '', '',
    {now}, {now}, 0, {forever}, :retention, 0, :tokens
FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM {keys} WHERE id = :id);
SELECT 0, {now}, {columns} FROM {keys} WHERE id = :id
