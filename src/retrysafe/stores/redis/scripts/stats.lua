-- Stats: count one bucket's records by state, from their index alone. Writes nothing.
-- Reply: {now, claimed, released, completed, uncertain, lapsed, expired}.
local now = clock()

local function count(state, moment)
  return redis.call('ZCOUNT', STATES, due(state, moment))
end

return {
  now,
  count(CLAIMED, FOREVER),
  count(RELEASED, FOREVER),
  count(COMPLETED, FOREVER),
  count(UNCERTAIN, FOREVER),
  count(CLAIMED, now),
  count(COMPLETED, now) + count(RELEASED, now),
}
