-- Begin a new life in the row of an expired record. The token of the old life is replaced, so a former owner that wakes
-- up late does not match the fence, although attempt is 1 again (I3).
UPDATE {keys} SET
    namespace = :namespace, kind = :kind, scope = :scope, [key] = :key, target = :target,
    fingerprint = :fingerprint, state = 'claimed', attempt = 1, token = :token, run = :run,
    lease_until = {least}({now} + :lease, {forever}), on_lapse = :on_lapse, point = '', progress = {empty},
    input = :input, status = NULL, headers = '', body = {empty}, gone = '', note = '',
    created = {now}, started = {now}, completed = 0, expires = {forever}, retention = :retention,
    advances = 0, ended = :tokens
WHERE id = :id AND attempt = :seen_attempt AND token = :seen_token
    AND state IN ('completed', 'released') AND expires <= {now}
GO
SELECT started, {columns} FROM {keys} WHERE id = :id AND token = :token AND state = 'claimed'
