-- Forget: erase the bytes of a settled record (answer, input, progress) and keep the fact that it happened.
-- Not of a record released at a recovery point: that is unfinished work, and the bytes are what it resumes from.
-- ARGV: now, member, attempt, token. Reply: 1 or 0. Sending it again does the same again.
local record, bad = find()
if bad then return bad end
local refused = not owns(record, ARGV[3], ARGV[4]) or open(record)
if refused or (record.state == 'released' and record.point ~= '') then
  assure_primary()
  return 0
end
-- This HSET only shrinks, but Redis cannot know: the no-op write in front lets it through on full memory.
assure_primary()
redis.call('HSET', KEYS[1], 'input', '', 'progress', '')
if redis.call('HEXISTS', KEYS[1], 'status') == 1 then
  redis.call('HSET', KEYS[1], 'body', '', 'headers', '[]', 'gone', 'forgotten')
end
return 1
