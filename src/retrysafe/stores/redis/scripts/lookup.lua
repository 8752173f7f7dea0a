-- Lookup: read one record. ARGV: now, member. Reply: {now}, or {now, the record's values …}. Writes nothing.
local values, bad = read(KEYS[1], ARGV[2], #FIELDS)
if bad then return bad end
if not values then return {text(clock())} end
return {text(clock()), unpack(values, 1, #FIELDS)}
