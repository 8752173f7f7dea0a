-- Renew and Advance: the owner goes on. The lease is set anew; an advance also commits a recovery point.
-- From uncertain too: the owner itself is back, and is the best witness there is.
-- ARGV: now, member, attempt, token, lease, then for an advance the fields to set (name, value, …).
-- Reply: 1 if done, 0 if the fence does not hold. Sending it again does the same again.
local record, bad = find()
if bad then return bad end
if not owns(record, ARGV[3], ARGV[4]) or not open(record) then
  assure_primary()
  return 0
end
local lease_until = text(later(clock(), tonumber(ARGV[5])))
redis.call('ZREM', INDEX[record.state], ARGV[2])
redis.call('HSET', KEYS[1], 'state', 'claimed', 'lease_until', lease_until, 'note', '', unpack(ARGV, 6))
redis.call('ZADD', INDEX.claimed, lease_until, ARGV[2])
return 1
