-- Write a receipt into the row of an expired, released or abandoned record. It changes the row only if the row is still
-- what was read, and if its former owner has not renewed the lease.
UPDATE {keys} SET
    namespace = :namespace, kind = :kind, scope = :scope, key = :key, target = :target,
    fingerprint = :fingerprint, state = 'completed', attempt = :attempt, token = :token, run = :run,
    lease_until = {now}, on_lapse = 'rerun', point = '', progress = {empty}, input = :input,
    status = :status, headers = :headers, body = :body, gone = :gone, note = '',
    created = CAST(:created AS bigint), started = CAST(:started AS bigint), completed = {now},
    expires = {greatest}(
        {least}(CAST(:created AS bigint) + CAST(:retention AS bigint), {forever}), {least}({now} + {hour}, {forever})
    ),
    retention = CAST(:retention AS bigint), advances = 0, ended = :tokens
WHERE id = :id AND attempt = :seen_attempt AND token = :seen_token AND state = :seen_state
    AND (state <> 'claimed' OR lease_until <= {now}) AND {began} = :began
RETURNING completed
