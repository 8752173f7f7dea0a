-- Migrate: store the layout's version, its number of buckets and a random install id. The first writer of a field wins,
-- so any number of processes may run this at once.
-- KEYS[1] is the meta hash. ARGV: version, install, buckets. Reply: {created, version, buckets}.
local created = redis.call('HSETNX', KEYS[1], 'version', ARGV[1])
redis.call('HSETNX', KEYS[1], 'install', ARGV[2])
redis.call('HSETNX', KEYS[1], 'buckets', ARGV[3])
return {created, unpack(redis.call('HMGET', KEYS[1], 'version', 'buckets'))}
