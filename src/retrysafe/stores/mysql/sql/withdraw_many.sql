-- Many withdrawals as one statement (withdraw.sql), as in complete_many.sql.
UPDATE {keys} FORCE INDEX (PRIMARY) SET
    state = 'released', lease_until = @retrysafe_now, status = NULL, headers = '', body = {empty}, gone = '',
    note = {note}, completed = @retrysafe_now,
    expires = CASE WHEN point <> '' THEN {forever} WHEN attempt = 1 THEN @retrysafe_now ELSE
        {greatest}({least}(created + retention, {forever}), {least}(@retrysafe_now + {hour}, {forever})) END
WHERE id IN ({ids}) AND attempt = {attempt} AND token = {token} AND state IN ('claimed', 'uncertain')
