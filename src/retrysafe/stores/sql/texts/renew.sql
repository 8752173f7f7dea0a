-- The heartbeat. An owner the sweeper gave up on, but nobody replaced, is an owner again; one that gave up itself is
-- not. A copy that arrives late never shortens the lease (I32).
{with_brief}
UPDATE {keys} SET
    state = 'claimed', lease_until = {greatest}(lease_until, {least}({now} + :lease, {forever})), note = ''
{from_brief}
WHERE id = :id AND attempt = :attempt AND token = :token
    AND (state = 'claimed' OR (state = 'uncertain' AND advances <> {closed}))
RETURNING 1
