-- The first statement of every batch: one moment for all of its operations.
SET @retrysafe_now = {now}
