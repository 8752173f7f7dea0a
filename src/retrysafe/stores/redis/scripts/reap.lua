-- Reap: delete up to a number of expired records of one bucket, and the names of those the server expired
-- by itself. Expiry is judged by the record's own `expires`, never by its place in an index.
-- KEYS[3] is what every record's name begins with. ARGV: now, limit. Reply: how many went.
local now, limit, went = clock(), tonumber(ARGV[2]), 0

for _, state in ipairs({COMPLETED, RELEASED}) do
  local first, last = due(state, now)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', STATES, first, last, 'LIMIT', 0, limit - went)) do
    local key = KEYS[3] .. member
    local gone = redis.call('EXISTS', key) == 0
    local head = redis.pcall('HGET', key, 'h')
    local record = type(head) == 'string' and judged(head, member)
    -- What cannot be read stays for a person to look at, and does not stop the reaper.
    if gone or (record and reapable(record, now)) then
      redis.call('ZREM', STATES, member)
      redis.call('ZREM', BIRTHS, member)
      redis.call('UNLINK', key)
      went = went + 1
    end
  end
end
return went
