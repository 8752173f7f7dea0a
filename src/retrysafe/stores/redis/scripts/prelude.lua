-- Shared by every script: put in front of each one when it is loaded (layout.py).
--
-- KEYS[1] and KEYS[2] are the bucket's indexes, KEYS[3] is the record (a hash; for operations on a whole bucket, the
-- start of every record's name). Claims and settlings take as many records as there are, each with its own arguments.
-- All carry the bucket's hash tag, so the other records of a bucket, whose names a script can only build while it
-- runs, lie in the same cluster slot.
-- ARGV[1] is the moment, or '' for the server's own clock.
-- Values come only through ARGV; nothing of a user's is ever part of a script or of a key.
--
-- A record's fields are packed (rows.py): `h`, the head, is all that the moves judge by and change. A move reads it,
-- and writes it back with whatever else it brings: two commands, however large the rest of the record is.
--
-- Times are whole microseconds below 2^53, which doubles hold exactly. Where they must be text they are written with
-- %.0f, because tostring() would round them to 14 digits.
--
-- On full memory Redis refuses a script at its first write, if that write could grow memory, and never later.
-- So a birth begins with HSET and is refused as a whole, while every move of a record that exists begins with
-- DEL, PERSIST, PEXPIREAT or a ZREM and goes through: new work is turned away, and the answer of work already done
-- still gets in.

local HEAD, HEAD_SIZE = '>BBBBi4i8i8i8i8i8i8', 56
local CLAIMED, RELEASED, COMPLETED, UNCERTAIN = 1, 2, 3, 4
local FOREVER, HOUR = 9007199254740991, 3600000000
-- In the place of a number of advances: the owner gave up (core/records.py).
local CLOSED = 2147483647
local BIRTHS, STATES = KEYS[1], KEYS[2]
-- Where the times of each state are in STATES, and how far below it a band begins (layout.py).
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

-- What the moves judge by, or nil and the error.
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

-- The record as the moves want it: only its head, so that a stored body is not copied. Nil if there is none.
local function find(key)
  local head = redis.pcall('HGET', key, 'h')
  local member = string.sub(key, -64)
  if not head then
    -- A hash without a head is damage, not absence.
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

-- Its place among the records of its state.
local function place(member, record, moment)
  redis.call('ZADD', STATES, BAND[record.state] + moment, member)
end

-- The records of a state whose time has come, as ZCOUNT and ZRANGEBYSCORE want it said.
local function due(state, moment)
  return text(BAND[state] - MARGIN), text(BAND[state] + moment)
end

local function owns(record, attempt, token)
  return record ~= nil and record.token == token and record.attempt == tonumber(attempt)
end

local function open(record)
  return record.state == CLAIMED or record.state == UNCERTAIN
end

-- From when on the reaper may take it: once it has expired, and an hour after its end.
local function reapable(record, moment)
  return not open(record) and record.expires <= moment and record.completed <= moment - HOUR
end

-- Only the server that may write may say no. This removes a member that never exists: it changes nothing and
-- is neither logged nor replicated, but a replica, or a primary cut off from its replicas, answers with an
-- error here instead of refusing (or replaying) from the past.
local function assure_primary()
  redis.call('ZREM', STATES, '')
end
