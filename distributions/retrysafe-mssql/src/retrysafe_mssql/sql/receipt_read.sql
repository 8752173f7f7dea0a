-- The first statement of a user's transaction: try the lock of the key, which ends with the transaction, and read what is
-- committed, in one round trip. A receipt that commits after this is found when ours is inserted.
DECLARE @lock nvarchar(255) = CONCAT('retrysafe:', :lock);
DECLARE @got int;
EXEC @got = sp_getapplock @Resource = @lock, @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 0;
SELECT
    CASE WHEN @got >= 0 THEN 1 ELSE 0 END, {began}, (SELECT value FROM {meta} WHERE name = 'install'),
    clock.moment, {columns}
FROM (SELECT {now} AS moment) AS clock
LEFT JOIN {keys} ON id = :id
