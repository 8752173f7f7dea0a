-- No endpoint was entered. On the first attempt, without a recovery point, the record expires at once: the next claim
-- starts it anew, whatever its request is (I37). Otherwise the record is released.
{with_limit}
UPDATE {keys} SET
    state = 'released', lease_until = {now}, status = NULL, headers = '', body = {empty}, gone = '',
    note = :note, completed = {now},
    expires = CASE WHEN point <> '' THEN {forever} WHEN attempt = 1 THEN {now} ELSE
        {greatest}({least}(created + retention, {forever}), {least}({now} + {hour}, {forever})) END
{from_limit}
WHERE id = :id AND attempt = :attempt AND token = :token AND state IN ('claimed', 'uncertain')
RETURNING 1
