-- Outcome unknown. The sweeper (:lapsed_only = 1) must never accuse an owner that is alive.
UPDATE {keys} SET state = 'uncertain', note = :note
WHERE id = :id AND attempt = :attempt AND token = :token AND state = 'claimed'
    AND (:lapsed_only = 0 OR (lease_until <= {now} AND on_lapse = 'uncertain'))
RETURNING 1
