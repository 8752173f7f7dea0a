-- The heartbeat. An owner that the sweeper has marked uncertain, and no other owner has replaced, becomes the owner
-- again; an owner that gave up by itself does not. A copy that arrives late never shortens the lease (I32).
{with_brief}
UPDATE {keys} SET
    state = 'claimed', lease_until = {greatest}(lease_until, {least}({now} + :lease, {forever})), note = ''
{from_brief}
WHERE id = :id AND attempt = :attempt AND token = :token
    AND (state = 'claimed' OR (state = 'uncertain' AND advances <> {closed}))
RETURNING 1
