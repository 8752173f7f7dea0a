-- Claim: ask to be the one who runs it. One arbitrated step: look, judge, and write only if it is granted.
-- KEYS: the indexes, then one record for each claim. ARGV: now, then for each claim: token, lease, on_lapse, and what
-- only a newborn record takes from it: retention, born, input.
-- Reply: for each claim, now if it is a birth (the caller knows the rest), {granted, now, the record's fields and
-- values …} if not, or an error if what is there is no record.
-- The records were looked for, and are born if there were none, in birth.lua, which comes before.

local function fingerprint(born)
  if not born or #born < 28 then return nil end
  return string.sub(born, 29, 28 + struct.unpack('>I4', born))
end

-- The next attempt of the same life: run, recovery point and input stay, the fence changes.
local function take_over(record, key, at)
  redis.call('PERSIST', key)
  if record.noted == 1 then redis.call('HDEL', key, 'n') end
  record.state, record.on_lapse, record.noted, record.attempt = CLAIMED, ARGV[at + 2], 0, record.attempt + 1
  record.lease_until, record.started, record.completed, record.expires = later(now, ARGV[at + 1]), now, 0, FOREVER
  record.token = ARGV[at]
  redis.call('HSET', key, 'h', packed(record))
  local last = #states
  states[last + 1], states[last + 2] = record.lease_until, string.sub(key, -64)
  return {1, now, unpack(redis.call('HGETALL', key))}
end

local function claim(key, at, found)
  local member, fields = string.sub(key, -64), {}
  if found.err then return corrupt(member, found.err) end
  for n = 1, #found, 2 do fields[found[n]] = found[n + 1] end
  local record, bad = judged(fields.h, member)
  if bad then return bad end
  if record.token == ARGV[at] and record.state == CLAIMED then
    assure_primary()
    return {1, now, unpack(found)}  -- granted before, and the reply got lost
  end
  if not open(record) and record.expires <= now then
    redis.call('DEL', key)
    return birth(key, at)
  end
  local known = fingerprint(fields.b)
  if not known then return corrupt(member, 'it does not say how it was born') end
  if known == fingerprint(ARGV[at + 4]) then
    local abandoned = record.state == CLAIMED and record.lease_until <= now and record.on_lapse ~= 0
    if record.state == RELEASED or abandoned then return take_over(record, key, at) end
  end
  assure_primary()
  return {0, now, unpack(found)}
end

for _, other in ipairs(others) do
  local n, found = other[1], other[2]
  local key = KEYS[n + 2]
  -- Two claims of one key in one call: the first may have taken it over since.
  if #others > 1 then found = redis.pcall('HGETALL', key) end
  replies[n] = claim(key, n * 6 - 4, found)
end
return finish()
