-- Suspect: mark the outcome unknown. The sweeper says lapsed_only: it must never accuse a living owner.
-- ARGV: now, member, attempt, token, note, lapsed_only ('1' or '').
-- Reply: 1 if the record is uncertain under this fence, now or by an earlier arrival; else 0.
local record, bad = find()
if bad then return bad end
if not owns(record, ARGV[3], ARGV[4]) then
  assure_primary()
  return 0
end
local lapsed = record.lease_until <= clock() and record.on_lapse == 'uncertain'
if record.state ~= 'claimed' or (ARGV[6] == '1' and not lapsed) then
  assure_primary()
  return record.state == 'uncertain' and 1 or 0
end
redis.call('ZREM', INDEX.claimed, ARGV[2])
redis.call('HSET', KEYS[1], 'state', 'uncertain', 'note', ARGV[5])
redis.call('ZADD', INDEX.uncertain, text(record.started), ARGV[2])
return 1
