-- The bytes go, the fact stays: a retry learns that it was done and does not run (S13).
UPDATE {keys} SET
    headers = '', body = {empty}, input = {empty}, progress = {empty},
    gone = CASE WHEN status IS NULL THEN '' ELSE 'forgotten' END
WHERE id = :id AND attempt = :attempt AND token = :token
    AND (state = 'completed' OR (state = 'released' AND point = ''))
RETURNING 1
