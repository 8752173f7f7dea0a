-- Shared by every script: put in front of each one when it is loaded (layout.py), after one generated
-- line that defines FIELDS, the record's hash fields in the order Python reads them.
--
-- KEYS[1] is the record (a hash; for operations on a whole bucket, the start of every record's name),
-- KEYS[2..6] the bucket's indexes. All carry the bucket's hash tag, so the other records of a bucket, whose
-- names a script can only build while it runs, lie in the same cluster slot.
-- ARGV[1] is the moment, or '' for the server's own clock. ARGV[2] is the record's name in the indexes.
-- Values come only through ARGV; nothing of a user's is ever part of a script or of a key.
--
-- Times are whole microseconds below 2^53, which doubles hold exactly. They are written with %.0f, because
-- tostring() would round them to 14 digits.
--
-- On full memory Redis refuses a script at its first write, if that write could grow memory, and never later.
-- So a birth begins with HSET and is refused as a whole, while every move of a record that exists begins with
-- ZREM or PERSIST and goes through: new work is turned away, and the answer of work already done still gets in.

local FOREVER = 9007199254740991
local HOUR = 3600000000

local INDEX = {claimed = KEYS[2], released = KEYS[3], completed = KEYS[4], uncertain = KEYS[5]}
local IDS = KEYS[6]

local function text(number)
  return string.format('%.0f', number)
end

local function clock()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function later(moment, duration)
  return math.min(moment + duration, FOREVER)
end

local function corrupt(member, why)
  return redis.error_reply('CORRUPT ' .. member .. ' ' .. why)
end

-- The record's first so many values in the order of FIELDS, or nil if there is none; then the error if what
-- is there is no record.
local function read(key, member, count)
  local values = redis.pcall('HMGET', key, unpack(FIELDS, 1, count))
  if values.err then return nil, corrupt(member, values.err) end
  if values[1] then return values end
  -- A hash without a state is damage, not absence: it must not be born over.
  if redis.call('EXISTS', key) == 1 then return nil, corrupt(member, 'it has no state') end
  return nil
end

-- What the moves judge by. The first fields of FIELDS, in this order (layout.py).
local function judged(values, member)
  local record = {
    state = values[1], attempt = tonumber(values[2] or ''), token = values[3], fingerprint = values[4],
    lease_until = tonumber(values[5] or ''), on_lapse = values[6], point = values[7],
    created = tonumber(values[8] or ''), started = tonumber(values[9] or ''),
    retention = tonumber(values[10] or ''), expires = tonumber(values[11] or ''),
  }
  local whole = INDEX[record.state] and record.attempt and record.token and record.fingerprint
    and record.lease_until and record.on_lapse and record.point and record.created and record.started
    and record.retention and record.expires
  if not whole then return nil, corrupt(member, 'a field is missing or is not what it should be') end
  return record
end

-- The record as the fenced moves want it: only what they judge by, so that a stored body is not copied.
local function find()
  local values, bad = read(KEYS[1], ARGV[2], 11)
  if not values then return nil, bad end
  return judged(values, ARGV[2])
end

local function owns(record, attempt, token)
  return record ~= nil and record.attempt == tonumber(attempt) and record.token == token
end

local function open(record)
  return record.state == 'claimed' or record.state == 'uncertain'
end

-- Only the server that may write may say no. This removes a member that never exists: it changes nothing and
-- is neither logged nor replicated, but a replica, or a primary cut off from its replicas, answers with an
-- error here instead of refusing (or replaying) from the past.
local function assure_primary()
  redis.call('ZREM', INDEX.claimed, '')
end
