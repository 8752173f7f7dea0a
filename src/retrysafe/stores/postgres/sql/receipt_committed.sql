-- Whether the transaction that began was committed. A setting that is made in a transaction is gone when that one is
-- rolled back, and stays when it is committed. Asked after the rollback of whatever was open.
SELECT coalesce(current_setting('retrysafe.began', true), '') = CAST(CAST(:began AS bigint) AS text)
