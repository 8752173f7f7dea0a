-- The first write of a user's transaction: the record of a new key, as a claim whose lease is over and whose outcome is
-- unknown. The last write makes it the receipt (receipt_settle). So others see it only if the transaction was committed
-- in between, by hand.
INSERT INTO {keys} ({columns})
VALUES (
    :id, :namespace, :kind, :scope, :key, :target, :fingerprint, 'claimed', :attempt, :token, :run,
    :started, 'uncertain', '', {empty}, :input, NULL, '', {empty}, '', '',
    :created, :started, 0, {forever}, :retention, 0, :tokens
)
ON CONFLICT (id) DO NOTHING
RETURNING 1
