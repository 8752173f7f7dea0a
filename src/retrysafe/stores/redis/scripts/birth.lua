-- The fast path of claim.lua, in front of the prelude. Most claims create a record, and that needs nothing of the
-- prelude. Redis creates the prelude's functions anew in each call; that alone costs as much as creating a record.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
-- replies: one for each claim, in order. births and states: entries for the two indexes, written at the end.
-- others: the claims that did not create a record.
local replies, births, states, others = {}, {}, {}, {}

-- Create a record. `at` is the index of the claim's first argument.
local function birth(key, at)
  local lease_until = math.min(now + ARGV[at + 1], 9007199254740991)
  local head = struct.pack('>BBBBi4i8i8i8i8i8i8', 1, ARGV[at + 2], 0, 0, 1, lease_until, now, now, 0,
    9007199254740991, ARGV[at + 3]) .. ARGV[at]
  if ARGV[at + 5] == '' then
    redis.call('HSET', key, 'h', head, 'b', ARGV[at + 4])
  else
    redis.call('HSET', key, 'h', head, 'b', ARGV[at + 4], 'i', ARGV[at + 5])
  end
  local member, last = string.sub(key, -64), #births
  births[last + 1], births[last + 2] = now, member
  last = #states
  states[last + 1], states[last + 2] = lease_until, member
  return now
end

local function finish()
  if #births > 0 then redis.call('ZADD', KEYS[1], unpack(births)) end
  if #states > 0 then redis.call('ZADD', KEYS[2], unpack(states)) end
  return replies
end

for n = 1, #KEYS - 2 do
  local key = KEYS[n + 2]
  local found = redis.pcall('HGETALL', key)
  if #found == 0 and not found.err and ARGV[n * 7 - 1] ~= '' then
    replies[n] = birth(key, n * 7 - 5)
  else
    others[#others + 1] = {n, found}
  end
end
if #others == 0 then return finish() end
