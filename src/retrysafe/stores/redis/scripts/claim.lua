-- Claim: ask for the right to execute a key. One atomic step: read, decide, and write only if the claim is granted.
-- KEYS: the indexes, then one record for each claim. ARGV: now, then for each claim: token, lease, on_lapse; retention,
-- born and input, which only a new record uses; then the other forms of its fingerprint ('' for none).
-- A claim that resumes has an empty born and never creates a record. Instead of its input it names the run that it
-- continues, and all forms of its fingerprint are among the other forms.
-- Reply for each claim: now if it created the record (the caller knows the rest); otherwise {granted, now, the record's
-- fields and values …}; or an error if the key holds no valid record.
-- birth.lua runs before this script. It reads the records and creates those that do not exist.

-- How many tokens of ended attempts a record keeps (core/records.py).
local ENDED_KEPT = 8

-- Put one more token in front of `ended`, and drop the oldest above the limit. A released record has it there already.
local function with_ended(token, ended)
  local own, others = string.char(#token) .. token, ended or ''
  if string.sub(others, 1, #own) == own then others = string.sub(others, #own + 1) end
  local all, at, count = own .. others, 1, 0
  while at <= #all and count < ENDED_KEPT do
    at, count = at + 1 + string.byte(all, at), count + 1
  end
  return string.sub(all, 1, at - 1)
end

local function has_ended(token, ended)
  local at = 1
  while ended and at <= #ended do
    local size = string.byte(ended, at)
    if string.sub(ended, at + 1, at + size) == token then return true end
    at = at + 1 + size
  end
  return false
end

local function fingerprint(born)
  if not born or #born < 28 then return nil end
  return string.sub(born, 29, 28 + struct.unpack('>I4', born))
end

-- True if a claim is for the same request: its fingerprint matches in the form it would write, or in the form of
-- another release or key. A claim that resumes must also match the run, which is the last part of `born`.
local function accepts(known, at, born)
  if ARGV[at + 4] == '' and string.sub(born, -struct.unpack('>I4', born, 25)) ~= ARGV[at + 5] then return false end
  return known == fingerprint(ARGV[at + 4]) or string.find(ARGV[at + 6], '\n' .. known .. '\n', 1, true) ~= nil
end

-- Start the next attempt of the same run. Recovery point and input stay, the fence changes.
local function take_over(record, key, at, fields)
  redis.call('PERSIST', key)
  if fields.q then redis.call('HDEL', key, 'q') end
  local ended = with_ended(record.token, fields.e)
  if record.noted == 1 then redis.call('HDEL', key, 'n') end
  record.state, record.on_lapse, record.noted, record.attempt = CLAIMED, ARGV[at + 2], 0, record.attempt + 1
  record.lease_until, record.started, record.completed, record.expires = later(now, ARGV[at + 1]), now, 0, FOREVER
  record.token = ARGV[at]
  redis.call('HSET', key, 'h', packed(record), 'e', ended)
  local last = #states
  states[last + 1], states[last + 2] = record.lease_until, string.sub(key, -64)
  return {1, now, unpack(redis.call('HGETALL', key))}
end

local function claim(key, at, found)
  local member, fields = string.sub(key, -64), {}
  if found.err then return corrupt(member, found.err) end
  if #found == 0 then
    assure_primary()
    return {0, now}
  end
  for n = 1, #found, 2 do fields[found[n]] = found[n + 1] end
  local record, bad = judged(fields.h, member)
  if bad then return bad end
  if record.token == ARGV[at] or has_ended(ARGV[at], fields.e) then
    -- This claim was granted before and its reply was lost, or its attempt has ended since: then it is not granted.
    assure_primary()
    local own = record.token == ARGV[at] and record.state == CLAIMED
    return {own and 1 or 0, now, unpack(found)}
  end
  if not open(record) and record.expires <= now and ARGV[at + 4] ~= '' then
    redis.call('DEL', key)
    birth(key, at)
    redis.call('HSET', key, 'e', with_ended(record.token, fields.e))
    return {1, now, unpack(redis.call('HGETALL', key))}
  end
  local known = fingerprint(fields.b)
  if not known then return corrupt(member, 'it does not say how it was born') end
  if accepts(known, at, fields.b) and (open(record) or record.expires > now) then
    local abandoned = record.state == CLAIMED and record.lease_until <= now and record.on_lapse ~= 0
    if record.state == RELEASED or abandoned then return take_over(record, key, at, fields) end
  end
  assure_primary()
  return {0, now, unpack(found)}
end

for _, other in ipairs(others) do
  local n, found = other[1], other[2]
  local key = KEYS[n + 2]
  -- Two claims of one key may be in one call: an earlier one may have changed the record since it was read.
  if #others > 1 then found = redis.pcall('HGETALL', key) end
  replies[n] = claim(key, n * 7 - 5, found)
end
return finish()
