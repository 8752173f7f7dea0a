-- Many releases as one statement (release.sql), as in complete_many.sql.
UPDATE {keys} FORCE INDEX (PRIMARY) SET
    state = 'released', lease_until = @retrysafe_now, status = NULL, headers = '', body = {empty}, gone = '',
    note = {note}, completed = @retrysafe_now,
    expires = CASE WHEN point <> '' THEN {forever} ELSE
        {greatest}({least}(created + retention, {forever}), {least}(@retrysafe_now + {hour}, {forever})) END
WHERE id IN ({ids}) AND attempt = {attempt} AND token = {token} AND state IN ('claimed', 'uncertain')
