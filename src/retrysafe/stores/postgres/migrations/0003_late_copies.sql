-- What keeps late copies from changing anything: how many advances this attempt has made, and the tokens of attempts
-- that ended. Only added, with a default: processes of the release before go on beside this one (rule 17).
-- An ALTER waits for every transaction that has touched the table, and everybody waits behind it: not for long.
SET LOCAL lock_timeout = '3s';

ALTER TABLE {keys}
    ADD COLUMN IF NOT EXISTS advances integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS ended bytea NOT NULL DEFAULT ''::bytea;
