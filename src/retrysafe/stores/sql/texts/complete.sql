-- Store the answer. Only an open record is changed, so the answer is written once. It is kept for its retention, and at
-- least an hour from now.
{with_limit}
UPDATE {keys} SET
    state = 'completed', lease_until = {now}, status = :status, headers = :headers, body = :body, gone = :gone,
    note = '', completed = {now},
    expires = {greatest}({least}(created + retention, {forever}), {least}({now} + {hour}, {forever}))
{from_limit}
WHERE id = :id AND attempt = :attempt AND token = :token AND state IN ('claimed', 'uncertain')
RETURNING 1
