-- The outcome is unknown. The sweeper (:lapsed_only = 1) must never mark the record of a live owner, and the owner may
-- come back. An owner that marks it has given up: its late renewals and advances change nothing from then on (I32).
{with_limit}
UPDATE {keys} SET
    state = 'uncertain', note = :note, advances = CASE WHEN :lapsed_only = 1 THEN advances ELSE {closed} END
{from_limit}
WHERE id = :id AND attempt = :attempt AND token = :token AND (
    (:lapsed_only = 1 AND state = 'claimed' AND lease_until <= {now} AND on_lapse = 'uncertain')
    OR (:lapsed_only = 0 AND (state = 'claimed' OR (state = 'uncertain' AND advances <> {closed})))
)
RETURNING 1
