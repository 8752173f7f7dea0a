-- Complete, Release, Withdraw and Resolve: move records from an open state to completed or released.
-- KEYS: the indexes, then one record for each operation. ARGV: now, then for each: attempt, token, target state
-- (5: withdrawn), the only allowed source state (0 for any open one), note, the answer ('' for none).
-- Reply for each: 1 if it was applied, now or by an earlier copy of the same operation; else 0; or an error if the key
-- holds no valid record. finish.lua runs before this script and handles the common case.

local WITHDRAWN = 5

local function write(record, key, at, target, open_to_all)
  local note, answer, noted = ARGV[at + 4], ARGV[at + 5], record.noted
  local expires = math.max(later(record.created, record.retention), later(now, HOUR))
  -- A record released at a recovery point is unfinished work and never expires.
  if target == RELEASED and record.pointed == 1 then expires = FOREVER end
  local kept = expires
  -- Withdrawn: the next claim starts a new run. The record is kept for an hour, so that late copies find it.
  if open_to_all and record.pointed == 0 and record.attempt == 1 then expires, kept = now, later(now, HOUR) end
  -- If the caller gave the time, the server's clock has no meaning for this record.
  if ARGV[1] == '' and kept < FOREVER then
    redis.call('PEXPIREAT', key, text(math.ceil(kept / 1000)))
  else
    redis.call('PERSIST', key)
  end
  record.state, record.lease_until, record.completed, record.expires = target, now, now, expires
  record.noted = note == '' and 0 or 1
  if note ~= '' then
    redis.call('HSET', key, 'n', note)
  elseif noted == 1 then
    redis.call('HDEL', key, 'n')
  end
  if answer ~= '' then
    redis.call('HSET', key, 'h', packed(record), 'a', answer)
  else
    -- The token is stored as ended now and not at the takeover, because a process of the previous release that takes
    -- over would not store it.
    local ended = string.char(#record.token) .. record.token .. (redis.call('HGET', key, 'e') or '')
    redis.call('HSET', key, 'h', packed(record), 'e', ended)
  end
  local last = #states
  states[last + 1], states[last + 2] = BAND[target] + kept, string.sub(key, -64)
  return 1
end

local function settle(key, at)
  local record, bad = find(key)
  if bad then return bad end
  if not owns(record, ARGV[at], ARGV[at + 1]) then
    assure_primary()
    return 0
  end
  local target, source = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local open_to_all = target == WITHDRAWN
  if open_to_all then target = RELEASED end
  -- Resolve also accepts a lapsed record that the sweeper has not marked uncertain yet.
  local lapsed = record.state == CLAIMED and record.lease_until <= now and record.on_lapse == 0
  if not open(record) or (source ~= 0 and record.state ~= source and not lapsed) then
    assure_primary()
    if record.state ~= target then return 0 end
    -- The answer is compared byte by byte: a second, different answer under the same fence is refused.
    if target == COMPLETED and redis.call('HGET', key, 'a') ~= ARGV[at + 5] then return 0 end
    return 1
  end
  return write(record, key, at, target, open_to_all)
end

-- Records that the server expired by itself leave entries in the indexes. Some of them are removed here, so that the
-- indexes stay bounded even if no worker ever runs.
local function tidy(start, state)
  local first, last = due(state, now - 60000000)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', STATES, first, last, 'LIMIT', 0, 32 + #KEYS)) do
    -- On a cluster the record may have just moved to another node. Then EXISTS is an error: the record is not missing.
    if redis.pcall('EXISTS', start .. name) == 0 then
      redis.call('ZREM', STATES, name)
      redis.call('ZREM', BIRTHS, name)
    end
  end
end

for _, n in ipairs(others) do
  replies[n] = settle(KEYS[n + 2], n * 6 - 4)
end
finish()
if tidying then
  tidy(string.sub(KEYS[3], 1, -65), COMPLETED)
  tidy(string.sub(KEYS[3], 1, -65), RELEASED)
end
return replies
