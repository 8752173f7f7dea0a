-- The last write of a user's transaction: its record becomes the receipt. No row: this is not the transaction that began.
UPDATE {keys} SET
    state = 'completed', lease_until = {now}, on_lapse = 'rerun', note = '',
    status = :status, headers = :headers, body = :body, gone = :gone, completed = {now},
    expires = {greatest}(
        {least}(CAST(:created AS bigint) + CAST(:retention AS bigint), {forever}), {least}({now} + {hour}, {forever})
    )
WHERE id = :id AND attempt = :attempt AND token = :token AND state = 'claimed' AND {began} = :began
RETURNING {now}
