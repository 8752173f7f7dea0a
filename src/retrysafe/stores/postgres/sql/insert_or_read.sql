-- The first statement of a claim: insert, and if the id exists, read the record. One round trip in both cases, and a
-- replay uses no transaction id. No row: another insert committed after our snapshot was taken.
-- An inserted record returns no columns, because the claim has them all.
-- The wait for an uncommitted insert of the same id is limited in the statement, because a session setting would not
-- survive a pooler in transaction mode.
WITH {patience}, fresh AS (
    INSERT INTO {keys} ({columns})
    SELECT
        :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'claimed', 1, :token, :run,
        {least}({now} + :lease, {forever}), :on_lapse, '', {empty}, :input, NULL, '', {empty}, '', '',
        {now}, {now}, 0, {forever}, :retention, 0, :tokens
    FROM patience
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
SELECT true, {now}, {nothing} FROM fresh
UNION ALL
SELECT false, {now}, {columns} FROM {keys} WHERE id = :id
