-- A recovery point, and what a lapsed lease means from here on. Only the next of this attempt: a late copy of an
-- earlier one must not move the point back over what followed (I32).
{with_limit}
UPDATE {keys} SET
    state = 'claimed', advances = :number, point = :point, progress = :progress, on_lapse = :on_lapse,
    lease_until = {least}({now} + :lease, {forever}), note = ''
{from_limit}
WHERE id = :id AND attempt = :attempt AND token = :token AND state IN ('claimed', 'uncertain')
    AND advances = :number - 1
RETURNING 1
