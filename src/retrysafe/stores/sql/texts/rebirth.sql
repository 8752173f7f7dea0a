-- Start an expired record anew in the same row. The old token is replaced, so the fence refuses a former owner, although
-- attempt is 1 again (I3).
{with_patience}
UPDATE {keys} SET
    namespace = :namespace, kind = :kind, scope = :scope, key = :key, target = :target,
    fingerprint = :fingerprint, state = 'claimed', attempt = 1, token = :token, run = :run,
    lease_until = {least}({now} + :lease, {forever}), on_lapse = :on_lapse, point = '', progress = {empty},
    input = :input, status = NULL, headers = '', body = {empty}, gone = '', note = '',
    created = {now}, started = {now}, completed = 0, expires = {forever}, retention = :retention,
    advances = 0, ended = :tokens
{from_patience}
WHERE id = :id AND attempt = :seen_attempt AND token = :seen_token
    AND state IN ('completed', 'released') AND expires <= {now}
RETURNING {now}, {columns}
