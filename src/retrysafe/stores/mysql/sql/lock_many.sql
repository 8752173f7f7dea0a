-- In a batch, before the rows of its owners are written: lock them all, or fail at once if another transaction has locked one.
-- A batch that waited would do so for a second or two, with the rows of other calls locked, whose leases nobody could renew
-- then (I33).
SELECT count(*) FROM {keys} FORCE INDEX (PRIMARY) WHERE id IN ({ids}) FOR UPDATE NOWAIT
