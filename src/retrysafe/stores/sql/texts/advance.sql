-- Store a recovery point, and what a lapsed lease means from here on. Only the next number of this attempt is accepted:
-- a late copy of an earlier advance must not move the point back (I32).
{with_limit}
UPDATE {keys} SET
    state = 'claimed', advances = :number, point = :point, progress = :progress, on_lapse = :on_lapse,
    lease_until = {least}({now} + :lease, {forever}), note = ''
{from_limit}
WHERE id = :id AND attempt = :attempt AND token = :token AND state IN ('claimed', 'uncertain')
    AND advances = :number - 1
RETURNING 1
