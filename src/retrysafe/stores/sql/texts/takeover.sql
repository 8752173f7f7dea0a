-- The next attempt of the same record. The statement checks again everything that allowed the takeover, because the owner
-- may have renewed or settled since the read.
{with_patience}
UPDATE {keys} SET
    state = 'claimed', attempt = attempt + 1, token = :token,
    lease_until = {least}({now} + :lease, {forever}), on_lapse = :on_lapse, note = '',
    started = {now}, completed = 0, expires = {forever}, advances = 0, ended = :tokens
{from_patience}
WHERE id = :id AND attempt = :seen_attempt AND token = :seen_token AND (
    (state = 'released' AND expires > {now})
    OR (state = 'claimed' AND lease_until <= {now} AND on_lapse IN ('resume', 'rerun'))
)
RETURNING {now}, {columns}
