-- What keeps late copies from changing anything: how many advances this attempt has made, and the tokens of attempts
-- that ended. Only added, with a default: processes of the release before go on beside this one (rule 17).
ALTER /* or nothing */ TABLE {keys}
    ADD COLUMN advances integer NOT NULL DEFAULT 0,
    ADD COLUMN ended varbinary(2304) NOT NULL DEFAULT '';
