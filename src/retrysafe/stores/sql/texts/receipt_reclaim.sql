-- The first write of a user's transaction where the row of an expired, released or abandoned record exists: the record
-- becomes a claim whose lease is over and whose outcome is unknown, if the row is still what was read.
UPDATE {keys} SET
    namespace = :namespace, kind = :kind, scope = :scope, key = :key, target = :target,
    fingerprint = :fingerprint, state = 'claimed', attempt = :attempt, token = :token, run = :run,
    lease_until = CAST(:started AS bigint), on_lapse = 'uncertain', point = '', progress = {empty}, input = :input,
    status = NULL, headers = '', body = {empty}, gone = '', note = '',
    created = CAST(:created AS bigint), started = CAST(:started AS bigint), completed = 0, expires = {forever},
    retention = CAST(:retention AS bigint), advances = 0, ended = :tokens
WHERE id = :id AND attempt = :seen_attempt AND token = :seen_token AND state = :seen_state
    AND (state <> 'claimed' OR lease_until <= {now})
RETURNING 1
