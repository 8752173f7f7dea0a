-- Many heartbeats as one statement (renew.sql).
UPDATE ({rows}) AS g STRAIGHT_JOIN {keys} AS k FORCE INDEX (PRIMARY) ON k.id = g.id SET
    k.state = 'claimed', k.note = '',
    k.lease_until = {greatest}(k.lease_until, {least}(@retrysafe_now + g.lease, {forever}))
WHERE k.attempt = g.attempt AND k.token = g.token
    AND (k.state = 'claimed' OR (k.state = 'uncertain' AND k.advances <> {closed}))
