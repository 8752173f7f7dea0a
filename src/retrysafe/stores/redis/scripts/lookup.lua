-- Lookup: read one record. ARGV: now. Reply: {now, the record's fields and values …}. Writes nothing.
local found = redis.pcall('HGETALL', KEYS[3])
if found.err then return corrupt(string.sub(KEYS[3], -64), found.err) end
return {clock(), unpack(found)}
