-- Many answers as one statement (complete.sql). With FORCE INDEX and the order of the join, only the rows of these ids are
-- read and locked.
UPDATE ({rows}) AS g STRAIGHT_JOIN {keys} AS k FORCE INDEX (PRIMARY) ON k.id = g.id SET
    k.state = 'completed', k.lease_until = @retrysafe_now, k.status = g.status, k.headers = g.headers, k.body = g.body,
    k.gone = g.gone, k.note = '', k.completed = @retrysafe_now,
    k.expires = {greatest}({least}(k.created + k.retention, {forever}), {least}(@retrysafe_now + {hour}, {forever}))
WHERE k.attempt = g.attempt AND k.token = g.token AND k.state IN ('claimed', 'uncertain')
