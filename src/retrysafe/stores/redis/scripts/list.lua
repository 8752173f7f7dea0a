-- List: one page of one bucket's records, in the order of their ids, so that a record which changes its state
-- or its lease between two pages is neither skipped nor able to hide.
-- A state with few records is read from its own index and sorted here; otherwise the index of all ids is
-- walked, a bounded stretch per call. Both continue after the same cursor, an id, so pages may change over.
-- KEYS[1] is what every record's name begins with.
-- ARGV: now, '', after (an id), limit, stretch, state ('' for any), lapsed ('1' or ''), then filters
-- (a field's place in FIELDS, value, …).
-- Reply: {the id to continue after, or '' at the end, {id, values …}, …}. Writes nothing.
local after, limit, stretch = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local state, lapsed = ARGV[6], ARGV[7] == '1'
local now = clock()
-- Bodies may be large: a page is also full when it holds this many bytes.
local FULL = 4194304

local function few()
  if state == '' then return nil end
  local top = lapsed and text(now) or '+inf'
  if redis.call('ZCOUNT', INDEX[state], '-inf', top) > stretch then return nil end
  local names = {}
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', INDEX[state], '-inf', top)) do
    if member > after then names[#names + 1] = member end
  end
  table.sort(names)
  return names, false
end

local function next_ids()
  local from = after == '' and '-' or '(' .. after
  local names = redis.call('ZRANGEBYLEX', IDS, from, '+', 'LIMIT', 0, stretch)
  return names, #names == stretch
end

-- Judged by the first fields alone: the body of a record nobody asked for is not touched.
local function wanted(values)
  for n = 8, #ARGV, 2 do
    if values[tonumber(ARGV[n])] ~= ARGV[n + 1] then return false end
  end
  if not lapsed then return true end
  local lease_until = tonumber(values[5] or '')
  return values[1] == 'claimed' and lease_until ~= nil and lease_until <= now
end

local names, more = few()
if not names then names, more = next_ids() end

local page, bytes = {''}, 0
for _, member in ipairs(names) do
  if #page > limit or bytes > FULL then
    more = true
    break
  end
  after = member
  local key = KEYS[1] .. member
  local first, bad = read(key, member, 14)
  if bad then return bad end
  if first and wanted(first) then
    local values = read(key, member, #FIELDS)
    page[#page + 1] = {member, unpack(values, 1, #FIELDS)}
    for n = 1, #FIELDS do bytes = bytes + #(values[n] or '') end
  end
end
if more then page[1] = after end
return page
