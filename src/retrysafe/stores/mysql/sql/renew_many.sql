-- Many heartbeats as one statement (renew.sql), as in complete_many.sql.
UPDATE {keys} FORCE INDEX (PRIMARY) SET
    state = 'claimed', note = '',
    lease_until = {greatest}(lease_until, {least}(@retrysafe_now + {lease}, {forever}))
WHERE id IN ({ids}) AND attempt = {attempt} AND token = {token}
    AND (state = 'claimed' OR (state = 'uncertain' AND advances <> {closed}))
