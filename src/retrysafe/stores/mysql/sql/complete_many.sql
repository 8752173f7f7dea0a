-- Many answers as one statement (complete.sql). A word in braces is a literal, or a choice by the id of the row (batches.py).
-- A join with the rows of the batch would go through a temporary table, on MariaDB on disk. With FORCE INDEX only the rows
-- of these ids are read and locked.
UPDATE {keys} FORCE INDEX (PRIMARY) SET
    state = 'completed', lease_until = @retrysafe_now, status = {status}, headers = {headers}, body = {body},
    gone = {gone}, note = '', completed = @retrysafe_now,
    expires = {greatest}({least}(created + retention, {forever}), {least}(@retrysafe_now + {hour}, {forever}))
WHERE id IN ({ids}) AND attempt = {attempt} AND token = {token} AND state IN ('claimed', 'uncertain')
