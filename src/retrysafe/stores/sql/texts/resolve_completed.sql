-- A person or a probe knows that it happened. The record is uncertain, or it is lapsed and the sweeper would mark it so.
{with_limit}
UPDATE {keys} SET
    state = 'completed', lease_until = {now}, status = :status, headers = :headers, body = :body, gone = :gone,
    note = :note, completed = {now},
    expires = {greatest}({least}(created + retention, {forever}), {least}({now} + {hour}, {forever}))
{from_limit}
WHERE id = :id AND attempt = :attempt AND token = :token AND (
    state = 'uncertain' OR (state = 'claimed' AND lease_until <= {now} AND on_lapse = 'uncertain')
)
RETURNING 1
