-- What a host says of itself, and what all do. See hosts.rs and acts.rs.
-- KEYS: the hash of hosts, the stream of acts. ARGV: host, sealed record, ms after which a silent host is removed,
-- ms that acts are kept, the last act heard, the most to answer, and sealed acts to add.
-- The answer: the time in us, whether this host was there, hosts, acts heard as id and sealed act.
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local was_there = 0
local all = redis.call('HGETALL', KEYS[1])
local hosts = {}
for i = 1, #all, 2 do
  local id, value = all[i], all[i + 1]
  if id == ARGV[1] then was_there = 1 end
  if #value < 8 or struct.unpack('>I8', value) + ARGV[3] < ms then
    redis.call('HDEL', KEYS[1], id)
  else
    hosts[#hosts + 1] = id
    hosts[#hosts + 1] = value
  end
end
redis.call('HSET', KEYS[1], ARGV[1], struct.pack('>I8', ms) .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
for i = 7, #ARGV do redis.call('XADD', KEYS[2], 'MAXLEN', '~', '10000', '*', 'a', ARGV[i]) end
if #ARGV >= 7 then redis.call('PEXPIRE', KEYS[2], ARGV[4]) end
local acts = {}
for _, act in ipairs(redis.call('XRANGE', KEYS[2], '(' .. ARGV[5], '+', 'COUNT', ARGV[6])) do
  acts[#acts + 1] = act[1]
  acts[#acts + 1] = act[2][2]
end
return { string.format('%.0f', time[1] * 1000000 + time[2]), was_there, hosts, acts }
