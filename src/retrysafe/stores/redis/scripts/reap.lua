-- Reap: delete up to a number of expired records of one bucket, and the names of those the server expired
-- by itself. Expiry is judged by the record's own `expires`, never by its place in an index.
-- KEYS[1] is what every record's name begins with. ARGV: now, '', limit. Reply: how many went.
local now, limit, went = clock(), tonumber(ARGV[3]), 0

for _, index in ipairs({INDEX.completed, INDEX.released}) do
  local due = redis.call('ZRANGEBYSCORE', index, '-inf', text(now), 'LIMIT', 0, limit - went)
  for _, member in ipairs(due) do
    local key = KEYS[1] .. member
    local gone = redis.call('EXISTS', key) == 0
    local values = redis.pcall('HMGET', key, 'state', 'expires')
    local settled = values[1] == 'completed' or values[1] == 'released'
    local expires = tonumber(values[2] or '')
    -- What cannot be read stays for a person to look at, and does not stop the reaper.
    if gone or (settled and expires and expires <= now) then
      redis.call('ZREM', index, member)
      redis.call('ZREM', IDS, member)
      redis.call('UNLINK', key)
      went = went + 1
    end
  end
end
return went
