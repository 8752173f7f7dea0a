-- A person or a probe knows that it did not happen. The record is uncertain, or it is lapsed and would become so.
{with_limit}
UPDATE {keys} SET
    state = 'released', lease_until = {now}, status = NULL, headers = '', body = {empty}, gone = '',
    note = :note, completed = {now},
    expires = CASE WHEN point <> '' THEN {forever} ELSE
        {greatest}({least}(created + retention, {forever}), {least}({now} + {hour}, {forever})) END
{from_limit}
WHERE id = :id AND attempt = :attempt AND token = :token AND (
    state = 'uncertain' OR (state = 'claimed' AND lease_until <= {now} AND on_lapse = 'uncertain')
)
RETURNING 1
