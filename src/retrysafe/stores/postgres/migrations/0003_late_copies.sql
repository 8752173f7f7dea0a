-- These columns keep late copies from changing anything: the number of advances of this attempt, and the tokens of
-- attempts that ended. They are only added, with a default: processes of the release before keep running (rule 17).
-- An ALTER waits for every transaction that uses the table, and all others wait behind it: the timeout limits that.
SET LOCAL lock_timeout = '3s';

ALTER TABLE {keys}
    ADD COLUMN IF NOT EXISTS advances integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS ended bytea NOT NULL DEFAULT ''::bytea;
