-- Complete, Release and Resolve: out of an open state into completed or released.
-- ARGV: now, member, attempt, token, target state, the one source state allowed ('' for any open one), note,
-- then for an answer: status, headers, body, gone.
-- Reply: 1 if done, now or by an earlier arrival of this same operation; else 0.
local member, target, source, note = ARGV[2], ARGV[5], ARGV[6], ARGV[7]

local record, bad = find()
if bad then return bad end

-- An answer is compared byte by byte: a second, different one under the same fence is refused.
local function done_before()
  if record.state ~= target then return 0 end
  if target == 'released' then return 1 end
  local stored = redis.call('HMGET', KEYS[1], 'status', 'headers', 'body', 'gone')
  for part = 1, 4 do
    if stored[part] ~= ARGV[7 + part] then return 0 end
  end
  return 1
end

-- Records that the server expired by itself leave their names behind. Each settling clears away up to two
-- of them, so the indexes stay bounded even where no worker ever runs.
local function tidy(now)
  local start = string.sub(KEYS[1], 1, -#member - 1)
  local past = redis.call('ZRANGEBYSCORE', INDEX[target], '-inf', text(now - 60000000), 'LIMIT', 0, 2)
  for _, name in ipairs(past) do
    if redis.call('EXISTS', start .. name) == 0 then
      redis.call('ZREM', INDEX[target], name)
      redis.call('ZREM', IDS, name)
    end
  end
end

if not owns(record, ARGV[3], ARGV[4]) then
  assure_primary()
  return 0
end
if not open(record) or (source ~= '' and record.state ~= source) then
  assure_primary()
  return done_before()
end

local now = clock()
local expires = math.max(later(record.created, record.retention), later(now, HOUR))
-- Released at a recovery point is unfinished work, and that never expires.
if target == 'released' and record.point ~= '' then expires = FOREVER end

redis.call('ZREM', INDEX[record.state], member)
local moment, last = text(now), text(expires)
if ARGV[8] then
  redis.call('HSET', KEYS[1], 'state', target, 'lease_until', moment, 'note', note, 'completed', moment,
    'expires', last, 'status', ARGV[8], 'headers', ARGV[9], 'body', ARGV[10], 'gone', ARGV[11])
else
  redis.call('HSET', KEYS[1], 'state', target, 'lease_until', moment, 'note', note, 'completed', moment,
    'expires', last)
end
redis.call('ZADD', INDEX[target], last, member)
-- With a moment given from outside the server's clock means nothing for this record.
if ARGV[1] == '' then
  if expires < FOREVER then redis.call('PEXPIREAT', KEYS[1], text(math.ceil(expires / 1000))) end
  tidy(now)
end
return 1
