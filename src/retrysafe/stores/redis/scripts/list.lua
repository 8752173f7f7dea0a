-- List: one page of one bucket's records, in the order of creation. No operation changes that order, so a record whose
-- state or lease changes between two pages is not skipped.
-- A state with few records is read from the index of states and sorted here. Otherwise the index of births is read, a
-- limited number of entries in each call (`stretch`). Both ways use the same cursor, so pages may use either.
-- KEYS[3] is the common start of all records' keys.
-- ARGV: now, after (creation time and id of the last record; '' to begin), limit, stretch, state (0 for any),
-- only ('lapsed', 'resting' or ''), then filters (the number of a part of `b`, value, …).
-- Reply: {time and id to continue after, or '' at the end, {id, fields and values …}, …}. Writes nothing.
-- A record that cannot be decoded is listed with its id alone, so that it does not hide the others.
local moment, after, limit, stretch = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local state, lapsed, resting = tonumber(ARGV[6]), ARGV[7] == 'lapsed', ARGV[7] == 'resting'
local now = clock()
-- Records may be large: a page is also full when it has this many bytes.
local FULL = 4194304

-- few() and next_births() return a list of {id, creation time}, and whether more records follow.
local function few()
  if state == 0 then return nil end
  local low, high = due(state, lapsed and now or FOREVER)
  -- A record released at a recovery point never expires, so it is at the end of its band.
  if resting then low = high end
  if redis.call('ZCOUNT', STATES, low, high) > stretch then return nil end
  local names = {}
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', STATES, low, high)) do
    local birth = tonumber(redis.call('ZSCORE', BIRTHS, member) or 0)
    if not moment or birth > moment or (birth == moment and member > after) then
      names[#names + 1] = {member, birth}
    end
  end
  table.sort(names, function(one, other)
    if one[2] ~= other[2] then return one[2] < other[2] end
    return one[1] < other[1]
  end)
  return names, false
end

-- The rank of the next record. It is found by binary search among records of the same creation time, because the
-- record of the cursor may have been deleted.
local function rank()
  if not moment then return 0 end
  local low = redis.call('ZCOUNT', BIRTHS, '-inf', '(' .. ARGV[2])
  local high = redis.call('ZCOUNT', BIRTHS, '-inf', ARGV[2])
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZRANGE', BIRTHS, middle, middle)[1] <= after then low = middle + 1 else high = middle end
  end
  return low
end

local function next_births()
  local first, names = rank(), {}
  local found = redis.call('ZRANGE', BIRTHS, first, first + stretch - 1, 'WITHSCORES')
  for n = 1, #found, 2 do names[#names + 1] = {found[n], tonumber(found[n + 1])} end
  return names, #names == stretch
end

-- True if a record matches. Only `h` and `b` are read: the other fields of a record that does not match are not loaded.
local function wanted(record, born)
  if state ~= 0 and record.state ~= state then return false end
  if lapsed and record.lease_until > now then return false end
  if resting and record.pointed == 0 then return false end
  if state == RELEASED and record.expires <= now then return false end
  if not ARGV[8] then return true end
  local sizes, starts, at = {struct.unpack('>I4I4I4I4I4I4I4', born)}, {}, 29
  for n = 1, 7 do
    starts[n] = at
    at = at + sizes[n]
  end
  for n = 8, #ARGV, 2 do
    local part = tonumber(ARGV[n])
    if string.sub(born, starts[part], starts[part] + sizes[part] - 1) ~= ARGV[n + 1] then return false end
  end
  return true
end

local names, more = few()
if not names then names, more = next_births() end

local page, bytes, last = {''}, 0, nil
for _, name in ipairs(names) do
  if #page > limit or bytes > FULL then
    more = true
    break
  end
  last = name
  local member = name[1]
  local key = KEYS[3] .. member
  local parts = redis.pcall('HMGET', key, 'h', 'b')
  if parts.err then
    page[#page + 1] = {member}
  elseif parts[1] or redis.call('EXISTS', key) == 1 then
    local record, bad = judged(parts[1], member)
    if bad or not parts[2] or #parts[2] < 28 then
      page[#page + 1] = {member}
    elseif wanted(record, parts[2]) then
      local found = redis.call('HGETALL', key)
      page[#page + 1] = {member, unpack(found)}
      for n = 1, #found do bytes = bytes + #found[n] end
    end
  end
end
if more then page[1] = text(last[2]) .. ':' .. last[1] end
return page
