-- The fast path of settle.lua, in front of the prelude: an owner completes what it claimed. Nearly every call is this
-- case. It saves the cost of the prelude, as in birth.lua. settle.lua handles all other cases.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
-- replies: one for each operation, in order. states: entries for the index, written at the end. others: the operations
-- that are left to settle.lua. tidying: whether to remove index entries of expired records.
local replies, states, others, tidying = {}, {}, {}, false

for n = 1, #KEYS - 2 do
  local key, at, done = KEYS[n + 2], n * 6 - 4, false
  local token, head = ARGV[at + 1], redis.pcall('HGET', key, 'h')
  if ARGV[at + 2] == '3' and ARGV[at + 3] == '0' and type(head) == 'string' and #head == 56 + #token then
    local state, on_lapse, pointed, noted, attempt, _, created, started, _, _, retention =
      struct.unpack('>BBBBi4i8i8i8i8i8i8', head)
    if state == 1 and noted == 0 and attempt == tonumber(ARGV[at]) and string.sub(head, 57) == token then
      local expires = math.min(math.max(created + retention, now + 3600000000), 9007199254740991)
      -- If the caller gave the time, the server's clock has no meaning for this record.
      if ARGV[1] == '' and expires < 9007199254740991 then
        redis.call('PEXPIREAT', key, string.format('%.0f', math.ceil(expires / 1000)))
      else
        redis.call('PERSIST', key)
      end
      head = struct.pack('>BBBBi4i8i8i8i8i8i8', 3, on_lapse, pointed, 0, attempt, now, created, started, now, expires,
        retention)
      redis.call('HSET', key, 'h', head .. token, 'a', ARGV[at + 5])
      local last = #states
      states[last + 1], states[last + 2] = expires - 9011597301252096, string.sub(key, -64)
      replies[n], done = 1, true
    end
  end
  if not done then others[#others + 1] = n end
  -- One operation in sixteen tidies up. The last hex digit of the id selects it.
  tidying = tidying or (ARGV[1] == '' and string.byte(key, -1) == 48)
end

local function finish()
  if #states > 0 then redis.call('ZADD', KEYS[2], unpack(states)) end
end

if #others == 0 and not tidying then
  finish()
  return replies
end
