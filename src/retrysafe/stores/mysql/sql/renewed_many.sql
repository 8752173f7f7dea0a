-- What became of the heartbeats of renew_unlocked_many.sql, read without a lock on the same connection: 1 if the lease is as
-- long as was asked for, 0 if the record is still its owner's and the row was locked. An owner that is not in the answer has
-- lost its lease.
SELECT k.id, k.state = 'claimed' AND k.lease_until >= {least}(@retrysafe_now + g.lease, {forever})
FROM ({rows}) AS g STRAIGHT_JOIN {keys} AS k FORCE INDEX (PRIMARY) ON k.id = g.id
WHERE k.attempt = g.attempt AND k.token = g.token
    AND (k.state = 'claimed' OR (k.state = 'uncertain' AND k.advances <> {closed}))
