-- Claim: ask to be the one who runs it. One arbitrated step: look, judge, and write only if it is granted.
-- ARGV: now, member, token, fingerprint, lease, on_lapse, then what only a newborn record takes from the claim:
-- retention, namespace, kind, scope, key, target, run, input.
-- Reply: {granted, now} for a birth (the caller knows the rest), else {granted, now, the record's values …}.
local member, token, fingerprint, lease, on_lapse = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local now = clock()

local values, bad = read(KEYS[1], member, #FIELDS)
if bad then return bad end

local function reply(granted, record)
  return {granted, text(now), unpack(record, 1, #FIELDS)}
end

local function birth()
  local moment = text(now)
  local lease_until = text(later(now, lease))
  redis.call('HSET', KEYS[1], 'state', 'claimed', 'attempt', '1', 'token', token, 'fingerprint', fingerprint,
    'lease_until', lease_until, 'on_lapse', on_lapse, 'point', '', 'created', moment, 'started', moment,
    'retention', ARGV[7], 'expires', text(FOREVER), 'namespace', ARGV[8], 'kind', ARGV[9], 'scope', ARGV[10],
    'key', ARGV[11], 'target', ARGV[12], 'run', ARGV[13], 'progress', '', 'input', ARGV[14], 'note', '',
    'completed', '0')
  -- A former life that ended by the server's own expiry may have left its names in the indexes.
  redis.call('ZREM', INDEX.completed, member)
  redis.call('ZREM', INDEX.released, member)
  redis.call('ZADD', INDEX.claimed, lease_until, member)
  redis.call('ZADD', IDS, 0, member)
  return {1, moment}
end

-- The next attempt of the same life: run, recovery point and input stay, the fence changes.
local function take_over(record)
  redis.call('PERSIST', KEYS[1])
  redis.call('ZREM', INDEX[record.state], member)
  local lease_until = text(later(now, lease))
  redis.call('HSET', KEYS[1], 'state', 'claimed', 'attempt', text(record.attempt + 1), 'token', token,
    'lease_until', lease_until, 'on_lapse', on_lapse, 'note', '', 'started', text(now), 'completed', '0',
    'expires', text(FOREVER))
  redis.call('ZADD', INDEX.claimed, lease_until, member)
  return reply(1, redis.call('HMGET', KEYS[1], unpack(FIELDS)))
end

if not values then return birth() end
local record, broken = judged(values, member)
if broken then return broken end

if record.token == token and record.state == 'claimed' then
  assure_primary()
  return reply(1, values)  -- granted before, and the reply got lost
end
if not open(record) and record.expires <= now then
  redis.call('DEL', KEYS[1])
  return birth()
end
if record.fingerprint == fingerprint then
  local abandoned = record.state == 'claimed' and record.lease_until <= now and record.on_lapse ~= 'uncertain'
  if record.state == 'released' or abandoned then return take_over(record) end
end
assure_primary()
return reply(0, values)
