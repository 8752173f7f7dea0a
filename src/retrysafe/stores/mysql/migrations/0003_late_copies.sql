-- These columns keep late copies from changing anything: the number of advances of this attempt, and the tokens of
-- attempts that ended. They are only added, with a default: processes of the release before keep running (rule 17).
ALTER /* or nothing */ TABLE {keys}
    ADD COLUMN advances integer NOT NULL DEFAULT 0,
    ADD COLUMN ended varbinary(2304) NOT NULL DEFAULT '';
