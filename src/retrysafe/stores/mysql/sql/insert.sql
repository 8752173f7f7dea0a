-- Insert a new record unless the id exists. The server sends back the time of the insert as the id that LAST_INSERT_ID
-- remembers, so a birth is one statement with nothing to read. NOT EXISTS is a plain read at READ COMMITTED: a replay takes
-- no lock, waits for no transaction and writes nothing. Two inserts at the same moment meet in the unique id: the second
-- one adds nothing.
INSERT /* or nothing */ INTO {keys} ({columns})
SELECT
    :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'claimed', 1, :token, :run,
    {least}({now} + :lease, {forever}), :on_lapse, '', {empty}, :input, NULL, '', {empty}, '', '',
    {now}, CAST(LAST_INSERT_ID({now}) AS SIGNED), 0, {forever}, :retention, 0, :tokens
FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM {keys} WHERE id = :id)
