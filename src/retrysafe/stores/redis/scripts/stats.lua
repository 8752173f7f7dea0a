-- Stats: count one bucket's records by state, from the indexes alone. Writes nothing.
-- Reply: {now, claimed, released, completed, uncertain, lapsed, expired}.
local now = text(clock())
return {
  now,
  redis.call('ZCARD', INDEX.claimed),
  redis.call('ZCARD', INDEX.released),
  redis.call('ZCARD', INDEX.completed),
  redis.call('ZCARD', INDEX.uncertain),
  redis.call('ZCOUNT', INDEX.claimed, '-inf', now),
  redis.call('ZCOUNT', INDEX.completed, '-inf', now) + redis.call('ZCOUNT', INDEX.released, '-inf', now),
}
