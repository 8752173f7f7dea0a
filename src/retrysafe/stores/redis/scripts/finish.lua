-- The beginning of settle.lua, in front of the prelude: an owner completes what it claimed, which is nearly every
-- settling there is. As in birth.lua, what is not run costs nothing; whatever else it may be, settle.lua judges.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
-- Replies in the order of the settlings; what goes into the index at the end; those that are something else.
local replies, states, others, tidying = {}, {}, {}, false

for n = 1, #KEYS - 2 do
  local key, at, done = KEYS[n + 2], n * 6 - 4, false
  local token, head = ARGV[at + 1], redis.pcall('HGET', key, 'h')
  if ARGV[at + 2] == '3' and ARGV[at + 3] == '0' and type(head) == 'string' and #head == 56 + #token then
    local state, on_lapse, pointed, noted, attempt, _, created, started, _, _, retention =
      struct.unpack('>BBBBi4i8i8i8i8i8i8', head)
    if state == 1 and noted == 0 and attempt == tonumber(ARGV[at]) and string.sub(head, 57) == token then
      local expires = math.min(math.max(created + retention, now + 3600000000), 9007199254740991)
      -- With a moment given from outside the server's clock means nothing for this record.
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
  -- One settling in sixteen (which one, the id says) tidies up.
  tidying = tidying or (ARGV[1] == '' and string.byte(key, -1) == 48)
end

local function finish()
  if #states > 0 then redis.call('ZADD', KEYS[2], unpack(states)) end
end

if #others == 0 and not tidying then
  finish()
  return replies
end
