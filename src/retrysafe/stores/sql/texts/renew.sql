-- The heartbeat. An owner the sweeper gave up on, but nobody replaced, is an owner again.
UPDATE {keys} SET state = 'claimed', lease_until = {least}({now} + :lease, {forever}), note = ''
WHERE id = :id AND attempt = :attempt AND token = :token AND state IN ('claimed', 'uncertain')
RETURNING 1
