-- Heads: read the heads of one bucket's records in one state, in the order of their index. Writes nothing.
-- KEYS[3] is the common start of all records' keys. ARGV: now, the state, 'due' for records whose time in the index has
-- come (else ''), how many to skip, how many to read.
-- Reply: {now, {member, 'h', head, 'b', born} …}. A record that is gone or cannot be read has only its member.
local now, state = clock(), tonumber(ARGV[2])
local first, last = due(state, ARGV[3] == 'due' and now or FOREVER)
local found = {now}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', STATES, first, last, 'LIMIT', ARGV[4], ARGV[5])) do
  local parts = redis.pcall('HMGET', KEYS[3] .. member, 'h', 'b')
  if parts.err or not parts[1] or not parts[2] then
    found[#found + 1] = {member}
  else
    found[#found + 1] = {member, 'h', parts[1], 'b', parts[2]}
  end
end
return found
