-- Reap: delete up to `limit` expired records of one bucket, and the index entries of records that the server expired by
-- itself. The record's own `expires` decides, never its score in an index.
-- KEYS[3] is the common start of all records' keys. ARGV: now, limit, how many to skip, and optionally the namespace
-- whose records may be deleted (default: all).
-- Reply: {how many were deleted, how many were skipped, whether to continue}.
local now, limit, skip, whose = clock(), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local went, over, seen = 0, 0, 0

-- True if the record belongs to the namespace. `born` has the sizes of its parts, then the parts, fingerprint first.
local function ours(born)
  if not whose then return true end
  if not born or #born < 28 then return false end
  local fingerprint, namespace = struct.unpack('>I4I4', born)
  return string.sub(born, 29 + fingerprint, 28 + fingerprint + namespace) == whose
end

for _, state in ipairs({COMPLETED, RELEASED}) do
  local first, last = due(state, now)
  local passed = math.min(skip, redis.call('ZCOUNT', STATES, first, last))
  skip = skip - passed
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', STATES, first, last, 'LIMIT', passed, limit - seen)) do
    local key = KEYS[3] .. member
    local gone = redis.call('EXISTS', key) == 0
    local found = redis.pcall('HMGET', key, 'h', 'b')
    local head = not found.err and found[1]
    local record = type(head) == 'string' and judged(head, member)
    seen = seen + 1
    -- A record that cannot be decoded is kept for a person to look at. It does not stop the reaper.
    if gone or (record and reapable(record, now) and ours(found[2])) then
      redis.call('ZREM', STATES, member)
      redis.call('ZREM', BIRTHS, member)
      redis.call('UNLINK', key)
      went = went + 1
    else
      over = over + 1
    end
  end
end
return {went, over, seen == limit and 1 or 0}
