-- Forget: erase the bytes of a settled record (answer, input, progress, note) and keep the record as a tombstone.
-- A record released at a recovery point is not erased: it is unfinished work and resumes from these bytes.
-- ARGV: now, attempt, token. Reply: 1 or 0. It is idempotent.
local record, bad = find(KEYS[3])
if bad then return bad end
local refused = not owns(record, ARGV[2], ARGV[3]) or open(record)
if refused or (record.state == RELEASED and record.pointed == 1) then
  assure_primary()
  return 0
end
-- The writes below only shrink the record, but Redis does not know that. A no-op write first lets them through if
-- memory is full (see prelude.lua).
assure_primary()
redis.call('HDEL', KEYS[3], 'i')
if record.noted == 1 then
  record.noted = 0
  redis.call('HDEL', KEYS[3], 'n')
  redis.call('HSET', KEYS[3], 'h', packed(record))
end
local progress, answer = unpack(redis.call('HMGET', KEYS[3], 'p', 'a'))
if progress then
  redis.call('HSET', KEYS[3], 'p', string.sub(progress, 1, 4 + struct.unpack('>I4', progress)))
end
if answer then
  redis.call('HSET', KEYS[3], 'a', string.sub(answer, 1, 4) .. struct.pack('>BI4', 9, 4) .. 'forgotten\0\0\0\0')
end
return 1
