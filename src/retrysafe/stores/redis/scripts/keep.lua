-- Renew and Advance: the owner goes on. The lease is set anew; an advance also commits a recovery point.
-- From uncertain too: the owner itself is back, and is the best witness there is.
-- ARGV: now, attempt, token, lease, then for an advance: on_lapse, whether there is a point, the point and progress.
-- Reply: 1 if done, 0 if the fence does not hold. Sending it again does the same again.
local record, bad, member = find(KEYS[3])
if bad then return bad end
if not owns(record, ARGV[2], ARGV[3]) or not open(record) then
  assure_primary()
  return 0
end
redis.call('PERSIST', KEYS[3])
if record.noted == 1 then redis.call('HDEL', KEYS[3], 'n') end
record.state, record.noted, record.lease_until = CLAIMED, 0, later(clock(), tonumber(ARGV[4]))
if ARGV[5] then
  record.on_lapse, record.pointed = tonumber(ARGV[5]), tonumber(ARGV[6])
  redis.call('HSET', KEYS[3], 'h', packed(record), 'p', ARGV[7])
else
  redis.call('HSET', KEYS[3], 'h', packed(record))
end
place(member, record, record.lease_until)
return 1
