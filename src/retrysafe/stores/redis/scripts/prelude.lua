-- Functions that all scripts share. layout.py puts this text in front of each script when it is loaded.
--
-- KEYS[1] and KEYS[2] are the bucket's indexes. KEYS[3] is the record (a hash); for operations on a whole bucket it is
-- the common start of all records' keys. claim.lua and settle.lua take many records, each with its own arguments.
-- All keys have the bucket's hash tag. So the other records of the bucket, whose keys a script builds while it runs,
-- are in the same cluster slot.
-- ARGV[1] is the time, or '' for the server's own clock.
-- Values come only through ARGV. No value of a user is ever part of a script or of a key.
--
-- A record's fields are packed (rows.py). `h`, the head, is all that the scripts judge by and change. A script reads
-- the head, and writes it back together with other new fields: two commands, however large the rest of the record is.
--
-- Times are whole microseconds below 2^53, which doubles hold exactly. Times in text are written with %.0f, because
-- tostring() would round them to 14 digits.
--
-- If memory is full, Redis refuses a script at its first write if that write could grow memory, and never later.
-- So a script that creates a record begins with HSET and is refused as a whole. A script that changes a record begins
-- with DEL, PERSIST, PEXPIREAT or ZREM and is accepted. New work is refused, and the answers of finished work can still
-- be stored.

local HEAD, HEAD_SIZE = '>BBBBi4i8i8i8i8i8i8', 56
local CLAIMED, RELEASED, COMPLETED, UNCERTAIN = 1, 2, 3, 4
local FOREVER, HOUR = 9007199254740991, 3600000000
-- Stored instead of a number of advances: the owner gave up (core/records.py).
local CLOSED = 2147483647
local BIRTHS, STATES = KEYS[1], KEYS[2]
-- The offset of each state's band of scores in STATES, and the margin below it (layout.py).
local BAND, MARGIN = {0, 9011597301252096, -9011597301252096, -18023194602504192}, 4398046511104

local function clock()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function text(number)
  return string.format('%.0f', number)
end

local function later(moment, duration)
  return math.min(moment + duration, FOREVER)
end

local function corrupt(member, why)
  return redis.error_reply('CORRUPT ' .. member .. ' ' .. why)
end

-- Unpack a record's head. Returns nil and an error if it is damaged.
local function judged(head, member)
  if not head then return nil, corrupt(member, 'it has no head') end
  if #head < HEAD_SIZE then return nil, corrupt(member, 'its head is too short') end
  local record = {}
  record.state, record.on_lapse, record.pointed, record.noted, record.attempt, record.lease_until, record.created,
    record.started, record.completed, record.expires, record.retention = struct.unpack(HEAD, head)
  record.token = string.sub(head, HEAD_SIZE + 1)
  if not BAND[record.state] or record.on_lapse > 2 then
    return nil, corrupt(member, 'its state, or what a lapsed lease means for it, is unknown')
  end
  return record
end

-- Read a record's head only, so that a stored body is not copied. Returns nil if there is no record.
local function find(key)
  local head = redis.pcall('HGET', key, 'h')
  local member = string.sub(key, -64)
  if not head then
    -- A hash without a head is a damaged record, not a missing one.
    if redis.call('EXISTS', key) == 0 then return nil end
  elseif type(head) == 'table' then
    return nil, corrupt(member, head.err)
  end
  local record, bad = judged(head, member)
  return record, bad, member
end

local function packed(record)
  return struct.pack(HEAD, record.state, record.on_lapse, record.pointed, record.noted, record.attempt,
    record.lease_until, record.created, record.started, record.completed, record.expires, record.retention)
    .. record.token
end

-- Set the record's score in the index of states.
local function place(member, record, moment)
  redis.call('ZADD', STATES, BAND[record.state] + moment, member)
end

-- The range of scores of a state's records up to a time, for ZCOUNT and ZRANGEBYSCORE.
local function due(state, moment)
  return text(BAND[state] - MARGIN), text(BAND[state] + moment)
end

local function owns(record, attempt, token)
  return record ~= nil and record.token == token and record.attempt == tonumber(attempt)
end

local function open(record)
  return record.state == CLAIMED or record.state == UNCERTAIN
end

-- True if the reaper may delete the record: it has expired, and its end is an hour ago.
local function reapable(record, moment)
  return not open(record) and record.expires <= moment and record.completed <= moment - HOUR
end

-- Fail unless this server accepts writes. A refusal or a replay must come from a server that may write, because others
-- may have old data. This removes a member that never exists: it changes nothing, and is neither logged nor replicated.
-- A replica, or a primary that has lost its replicas, answers this write with an error.
local function assure_primary()
  redis.call('ZREM', STATES, '')
end
