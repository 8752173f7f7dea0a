-- The next attempt of the same record. The statement checks again everything that allowed the takeover, because the owner
-- may have renewed or settled since the read. No row with our token: another claim was faster.
UPDATE {keys} SET
    state = 'claimed', attempt = attempt + 1, token = :token,
    lease_until = {least}({now} + :lease, {forever}), on_lapse = :on_lapse, note = '',
    started = {now}, completed = 0, expires = {forever}, advances = 0, ended = :tokens
WHERE id = :id AND attempt = :seen_attempt AND token = :seen_token AND (
    (state = 'released' AND expires > {now})
    OR (state = 'claimed' AND lease_until <= {now} AND on_lapse IN ('resume', 'rerun'))
);
SELECT started, {columns} FROM {keys} WHERE id = :id AND token = :token AND state = 'claimed'
