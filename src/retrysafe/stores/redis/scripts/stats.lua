-- Stats: count one bucket's records by state, from their index. Writes nothing.
-- KEYS[3] is the common start of all records' keys.
-- Reply: {now, claimed, released, completed, uncertain, lapsed, expired}.
local now = clock()

local function count(state, moment)
  return redis.call('ZCOUNT', STATES, due(state, moment))
end

-- A score may be a microsecond off (layout.py). For scores exactly at the limit, the records themselves decide.
local function expired(state)
  local first, last = due(state, now)
  local number = redis.call('ZCOUNT', STATES, first, last)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', STATES, last, last)) do
    local head = redis.pcall('HGET', KEYS[3] .. member, 'h')
    local record = type(head) == 'string' and judged(head, member)
    if record and not reapable(record, now) then number = number - 1 end
  end
  return number
end

return {
  now,
  count(CLAIMED, FOREVER),
  count(RELEASED, FOREVER),
  count(COMPLETED, FOREVER),
  count(UNCERTAIN, FOREVER),
  count(CLAIMED, now),
  expired(COMPLETED) + expired(RELEASED),
}
