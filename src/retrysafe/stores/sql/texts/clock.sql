-- The store's time.
SELECT {now}
