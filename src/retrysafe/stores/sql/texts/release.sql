-- Nothing final happened. A record that is released at a recovery point is unfinished work, which never expires (I13).
{with_limit}
UPDATE {keys} SET
    state = 'released', lease_until = {now}, status = NULL, headers = '', body = {empty}, gone = '',
    note = :note, completed = {now},
    expires = CASE WHEN point <> '' THEN {forever} ELSE
        {greatest}({least}(created + retention, {forever}), {least}({now} + {hour}, {forever})) END
{from_limit}
WHERE id = :id AND attempt = :attempt AND token = :token AND state IN ('claimed', 'uncertain')
RETURNING 1
