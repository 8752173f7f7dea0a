-- What keeps late copies from changing anything: how many advances this attempt has made, and the tokens of attempts
-- that ended. Only added, with a default: processes of the release before go on beside this one (rule 17).
ALTER TABLE {keys} ADD
    advances int NOT NULL DEFAULT 0,
    ended varbinary(2304) NOT NULL DEFAULT 0x;
