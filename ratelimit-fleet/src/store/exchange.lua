-- Stores the registers of one host, and answers the sum of the others'. See wire.rs.
-- KEYS: hashes of one slot. ARGV: host, sequence, and for each key its expiry in ms and entries of 16 bytes: a field and
-- a count, all ones for a question. A value is registers of 24 bytes: host, sequence, count.
-- The answer has 9 bytes an entry: whether the host had a register, and the sum.
local host, sequence = ARGV[1], ARGV[2]
local number = struct.unpack('>I8', sequence)
local ask = string.rep('\255', 8)
local most = 9007199254740992
local answer = {}
for k = 1, #KEYS do
  local packed = ARGV[2 * k + 2]
  local fields = {}
  for at = 1, #packed, 16 do fields[#fields + 1] = string.sub(packed, at, at + 7) end
  local values = redis.call('HMGET', KEYS[k], unpack(fields))
  local changes = {}
  for i = 1, #fields do
    local value = values[i]
    -- What is no list of registers is another's.
    if not value or #value % 24 ~= 0 then value = '' end
    local others, before, after, mine = 0, value, '', nil
    for at = 1, #value, 24 do
      if string.sub(value, at, at + 7) == host then
        mine = struct.unpack('>I8', value, at + 8)
        before, after = string.sub(value, 1, at - 1), string.sub(value, at + 24)
      else
        others = others + struct.unpack('>I8', value, at + 16)
      end
    end
    if others > most then others = most end
    local count = string.sub(packed, i * 16 - 7, i * 16)
    if count ~= ask and (not mine or mine < number) then
      changes[#changes + 1] = fields[i]
      changes[#changes + 1] = before .. after .. host .. sequence .. count
    end
    answer[#answer + 1] = struct.pack('>BI8', mine and 1 or 0, others)
  end
  if #changes > 0 then
    redis.call('HSET', KEYS[k], unpack(changes))
    redis.call('PEXPIRE', KEYS[k], ARGV[2 * k + 1])
  end
end
return table.concat(answer)
