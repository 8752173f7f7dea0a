-- The last write of a user's transaction: its record becomes the receipt. A savepoint has told before that it is the
-- transaction that began.
UPDATE {keys} SET
    state = 'completed', lease_until = {now}, on_lapse = 'rerun', note = '',
    status = :status, headers = :headers, body = :body, gone = :gone, completed = {now},
    expires = {greatest}(
        {least}(:created + :retention, {forever}), {least}({now} + {hour}, {forever})
    )
WHERE id = :id AND attempt = :attempt AND token = :token AND state = 'claimed'
RETURNING {now}
