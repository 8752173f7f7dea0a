-- Suspect: mark the outcome as unknown. The sweeper uses lapsed_only: it must not suspect an owner whose lease is
-- valid, and the owner may come back. An owner that sends this itself has given up; it is accepted also if the sweeper
-- was first.
-- ARGV: now, attempt, token, note, lapsed_only ('1' or '').
-- Reply: 1 if the record is uncertain under this fence, now or by an earlier copy; else 0.
local record, bad, member = find(KEYS[3])
if bad then return bad end
if not owns(record, ARGV[2], ARGV[3]) then
  assure_primary()
  return 0
end
local swept = ARGV[5] == '1'
local obeyed = open(record)
if swept then
  obeyed = record.state == CLAIMED and record.lease_until <= clock() and record.on_lapse == 0
elseif record.state == UNCERTAIN then
  obeyed = tonumber(redis.call('HGET', KEYS[3], 'q') or 0) ~= CLOSED
end
if not obeyed then
  assure_primary()
  return record.state == UNCERTAIN and 1 or 0
end
redis.call('PERSIST', KEYS[3])
record.state, record.noted = UNCERTAIN, 1
redis.call('HSET', KEYS[3], 'h', packed(record), 'n', ARGV[4])
if not swept then redis.call('HSET', KEYS[3], 'q', text(CLOSED)) end
place(member, record, record.started)
return 1
