-- Many heartbeats as one statement (renew.sql). A row that another transaction has locked is left out, because no lease may
-- wait for a row of another call (I33). An UPDATE cannot skip rows, a SELECT can: it locks the free ones, and they are
-- updated in the same statement. So no lock outlasts the packet, not even if this process is stopped. With LIMIT, which
-- cuts nothing off, the SELECT stays a SELECT: the planner would merge it into the UPDATE.
UPDATE (
    SELECT f.id, g.attempt, g.token, g.lease
    FROM ({rows}) AS g STRAIGHT_JOIN {keys} AS f FORCE INDEX (PRIMARY) ON f.id = g.id
    LIMIT 1000000000 FOR UPDATE SKIP LOCKED
) AS free STRAIGHT_JOIN {keys} AS k FORCE INDEX (PRIMARY) ON k.id = free.id SET
    k.state = 'claimed', k.note = '',
    k.lease_until = {greatest}(k.lease_until, {least}(@retrysafe_now + free.lease, {forever}))
WHERE k.attempt = free.attempt AND k.token = free.token
    AND (k.state = 'claimed' OR (k.state = 'uncertain' AND k.advances <> {closed}))
