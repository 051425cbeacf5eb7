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
-- A name of the future, or of another kind, would have every later act refused or passed over: the stream is removed,
-- and as the answer is that this host was not there, each one says its own again.
local after, acts = ARGV[5], {}
local function is_future(id) return tonumber(string.match(id, '^%d+')) > ms + 60000 end
local function is_spoiled(answer)
  return string.match(answer.err, '^ERR') or string.match(answer.err, '^WRONGTYPE')
end
if is_future(after) then after, was_there = '0', 0 end
local spoiled = false
for i = 7, #ARGV do
  local added = redis.pcall('XADD', KEYS[2], 'MAXLEN', '~', '10000', '*', 'a', ARGV[i])
  if type(added) ~= 'table' then
    spoiled = spoiled or is_future(added)
  elseif is_spoiled(added) then
    spoiled = true
  else
    return added
  end
end
if #ARGV >= 7 then redis.call('PEXPIRE', KEYS[2], ARGV[4]) end
local heard = redis.pcall('XRANGE', KEYS[2], '(' .. after, '+', 'COUNT', ARGV[6])
if heard.err and not is_spoiled(heard) then return heard end
for _, act in ipairs(heard) do
  if is_future(act[1]) then spoiled = true break end
  acts[#acts + 1] = act[1]
  acts[#acts + 1] = act[2][2]
end
if spoiled or heard.err then
  redis.call('PEXPIRE', KEYS[2], 0)
  was_there = 0
end
return { string.format('%.0f', time[1] * 1000000 + time[2]), was_there, hosts, acts }
