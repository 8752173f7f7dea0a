-- Erase the answer, and keep the fact that it happened: a retry learns that the work was done, and does not run (S13).
{with_limit}
UPDATE {keys} SET
    headers = '', body = {empty}, input = {empty}, progress = {empty}, note = '',
    gone = CASE WHEN status IS NULL THEN '' ELSE 'forgotten' END
{from_limit}
WHERE id = :id AND attempt = :attempt AND token = :token
    AND (state = 'completed' OR (state = 'released' AND point = ''))
RETURNING 1
