-- A recovery point, and what a lapsed lease means from here on.
UPDATE {keys} SET
    state = 'claimed', point = :point, progress = :progress, on_lapse = :on_lapse,
    lease_until = {least}({now} + :lease, {forever}), note = ''
WHERE id = :id AND attempt = :attempt AND token = :token AND state IN ('claimed', 'uncertain')
RETURNING 1
