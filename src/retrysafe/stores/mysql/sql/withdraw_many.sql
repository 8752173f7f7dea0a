-- Many withdrawals as one statement (withdraw.sql).
UPDATE ({rows}) AS g STRAIGHT_JOIN {keys} AS k FORCE INDEX (PRIMARY) ON k.id = g.id SET
    k.state = 'released', k.lease_until = @retrysafe_now, k.status = NULL, k.headers = '', k.body = {empty}, k.gone = '',
    k.note = g.note, k.completed = @retrysafe_now,
    k.expires = CASE WHEN k.point <> '' THEN {forever} WHEN k.attempt = 1 THEN @retrysafe_now ELSE
        {greatest}({least}(k.created + k.retention, {forever}), {least}(@retrysafe_now + {hour}, {forever})) END
WHERE k.attempt = g.attempt AND k.token = g.token AND k.state IN ('claimed', 'uncertain')
