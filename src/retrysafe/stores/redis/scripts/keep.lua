-- Renew and Advance: the owner continues. A renewal never shortens the lease. An advance sets the lease anew and
-- commits a recovery point.
-- An uncertain record is accepted too, if the sweeper made it uncertain: its owner is back and knows best. It is not
-- accepted if the owner itself gave up (`q` is CLOSED): a message that arrives now was sent before that.
-- ARGV: now, attempt, token, lease, then for an advance: on_lapse, whether there is a point, the point and progress,
-- its number. Only the next number is applied: a late copy of an earlier advance must not move the point back (I32).
-- Reply: 1 if it was applied, now or by an earlier copy of the same advance; else 0.
local record, bad, member = find(KEYS[3])
if bad then return bad end
if not owns(record, ARGV[2], ARGV[3]) then
  assure_primary()
  return 0
end
local advances = tonumber(redis.call('HGET', KEYS[3], 'q') or 0)
local obeyed = open(record)
if ARGV[5] then
  obeyed = obeyed and tonumber(ARGV[8]) == advances + 1
else
  obeyed = obeyed and (record.state == CLAIMED or advances ~= CLOSED)
end
if not obeyed then
  assure_primary()
  local same = ARGV[5] and tonumber(ARGV[8]) == advances and redis.call('HGET', KEYS[3], 'p') == ARGV[7]
  return same and 1 or 0
end
redis.call('PERSIST', KEYS[3])
if record.noted == 1 then redis.call('HDEL', KEYS[3], 'n') end
local lease_until = later(clock(), tonumber(ARGV[4]))
record.state, record.noted = CLAIMED, 0
if ARGV[5] then
  record.lease_until, record.on_lapse, record.pointed = lease_until, tonumber(ARGV[5]), tonumber(ARGV[6])
  redis.call('HSET', KEYS[3], 'h', packed(record), 'p', ARGV[7], 'q', ARGV[8])
else
  record.lease_until = math.max(record.lease_until, lease_until)
  redis.call('HSET', KEYS[3], 'h', packed(record))
end
place(member, record, record.lease_until)
return 1
