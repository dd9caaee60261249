-- LINK/1, the cable between a palm access device and its validator, for Wireshark 3.6 and later.
--
--   wireshark -X lua_script:tools/kit/wireshark/link1.lua capture.pcap
--   tshark -X lua_script:tools/kit/wireshark/link1.lua -r capture.pcap -Y 'link1.type == "verdict"'
--
-- A packet (DLT_USER0) is one byte of direction, then a frame as it was on the wire. Captures are made by
-- `palmctl link monitor --pcap`. docs/reference/LINK1.md says what the members mean.

local link1 = Proto("link1", "LINK/1 palm access cable")

local KINDS = { [1] = "DATA", [2] = "ACK", [4] = "RST", [5] = "RSTACK", [6] = "PING", [7] = "PONG", [8] = "HINT" }
local CHANNELS = { [0] = "control", [1] = "mail" }
local DIRECTIONS = { [0] = "unknown", [1] = "device to validator", [2] = "validator to device" }
local ENDS = { [0] = { "?", "?" }, [1] = { "device", "validator" }, [2] = { "validator", "device" } }
local DATA, ACK, RST, RSTACK, HINT = 1, 2, 4, 5, 8
local HEADER_BYTES, CRC_BYTES, TAG_BYTES, MAX_FRAGMENTS, MAX_PAYLOAD_BYTES = 8, 4, 8, 4, 1024
local MAX_ENCODED_BYTES = 1041 -- without the 0x00: an end looks at no more
local PAYLOAD_BYTES = { [2] = 0, [4] = 8, [5] = 16, [6] = 0, [7] = 0 } -- kinds whose payload has one size

local f = {
  direction = ProtoField.uint8("link1.direction", "Direction", base.DEC, DIRECTIONS),
  ver = ProtoField.uint8("link1.ver", "Version", base.DEC),
  kind = ProtoField.uint8("link1.kind", "Kind", base.DEC, KINDS),
  chan = ProtoField.uint8("link1.chan", "Channel", base.DEC, CHANNELS),
  sess = ProtoField.uint8("link1.sess", "Session (first byte of the receiver's tag)", base.HEX),
  mid = ProtoField.uint16("link1.mid", "Message number", base.DEC),
  index = ProtoField.uint8("link1.index", "Fragment", base.DEC),
  count = ProtoField.uint8("link1.count", "Fragments", base.DEC),
  payload = ProtoField.bytes("link1.payload", "Payload"),
  crc = ProtoField.uint32("link1.crc", "CRC-32", base.HEX),
  crc_good = ProtoField.bool("link1.crc.good", "CRC good"),
  tag = ProtoField.bytes("link1.tag", "Tag of the sender"),
  answered_tag = ProtoField.bytes("link1.answered_tag", "Tag answered"),
  type = ProtoField.string("link1.type", "Message type"),
  text = ProtoField.string("link1.text", "Message"),
  dropped = ProtoField.string("link1.dropped", "Dropped because"),
  session = ProtoField.uint32("link1.session", "Session of this capture", base.DEC),
  stale = ProtoField.string("link1.stale", "Not of the session"),
  again = ProtoField.bool("link1.again", "Sent before in this session"),
}
link1.fields = f

local no_frame = ProtoExpert.new("link1.no_frame", "Dropped whole", expert.group.MALFORMED, expert.severity.ERROR)
local not_in_session = ProtoExpert.new("link1.not_in_session", "Not of the session", expert.group.SEQUENCE, expert.severity.WARN)
link1.experts = { no_frame, not_in_session }

-- Bit operations: a library in Lua 5.1 and 5.2, operators from 5.3 on.
local library = rawget(_G, "bit32") or rawget(_G, "bit")
local bxor, band, rshift
if library then
  bxor, band, rshift = library.bxor, library.band, library.rshift
else
  bxor, band, rshift = load([[return
    function(a, b) return a ~ b end, function(a, b) return a & b end, function(a, n) return a >> n end]])()
end

local crc_table = {}
for byte = 0, 255 do
  local value = byte
  for _ = 1, 8 do
    local low = band(value, 1)
    value = rshift(value, 1)
    if low == 1 then value = bxor(value, 0xEDB88320) end
  end
  crc_table[byte] = value % 0x100000000
end

local function crc32(text)
  local value = 0xFFFFFFFF
  for position = 1, #text do
    local entry = crc_table[band(bxor(value, text:byte(position)), 0xFF)]
    value = bxor(rshift(value, 8), entry) % 0x100000000
  end
  return bxor(value, 0xFFFFFFFF) % 0x100000000
end

-- Undo COBS; nil for bytes that no encoder makes.
local function cobs_decode(text)
  local out, position = {}, 1
  while position <= #text do
    local code = text:byte(position)
    local block = text:sub(position + 1, position + code - 1)
    if code == 0 or #block ~= code - 1 or block:find("\0", 1, true) then return nil end
    out[#out + 1] = block
    position = position + code
    if code ~= 0xFF and position <= #text then out[#out + 1] = "\0" end
  end
  return table.concat(out)
end

-- Why an end drops this frame, in the words of `palmctl link monitor`; nil for a frame as it should be.
local function fault_of(m)
  if m.size > MAX_PAYLOAD_BYTES then return "too_long" end
  if not m.good then return "bad_crc" end
  if m.ver ~= 1 then return "wrong_version" end
  if KINDS[m.kind] == nil then return "unknown_kind" end
  if CHANNELS[m.chan] == nil then return "unknown_channel" end
  if m.kind == DATA then
    if m.count < 1 or m.count > MAX_FRAGMENTS then return "bad_count" end
    if m.index >= m.count then return "bad_index" end
    if m.index < m.count - 1 and m.size ~= MAX_PAYLOAD_BYTES then return "short_slice" end
    if m.size == 0 then return "empty_last_fragment" end
    return nil
  end
  local exact = PAYLOAD_BYTES[m.kind]
  if exact ~= nil and m.size ~= exact then return "bad_payload" end
  local in_channel = m.kind == ACK
  local has_session = m.kind ~= RST and m.kind ~= RSTACK
  if m.index ~= 0 or m.count ~= 1 or (not in_channel and (m.chan ~= 0 or m.mid ~= 0))
    or (not has_session and m.sess ~= 0) then
    return "member_not_allowed"
  end
  return nil
end

-- Fragments seen so far, messages seen whole, and for each packet what was found out: Wireshark dissects a
-- packet again and again, in any order, after the first pass in order.
local partial, whole, delivered, changed = {}, {}, {}, {}
-- Sessions: the tag that each end (by the direction of its frames) has now, the first bytes of those it had,
-- whether its RST is unanswered, and of each packet the number of its session and why it is none of that.
local tags, former, resetting, session, sessions, placed
function link1.init()
  partial, whole, delivered, changed = {}, {}, {}, {}
  tags, former, resetting = {}, { {}, {} }, {}
  session, sessions, placed = 0, {}, {}
end

local function begin_session(from, own, peer)
  local pair = from == 1 and own .. peer or peer .. own
  resetting[3 - from] = nil -- its RST has its answer
  if sessions[pair] then return sessions[pair] end
  for direction, tag in pairs({ [from] = own, [3 - from] = peer }) do
    local old = tags[direction]
    if old ~= nil and old ~= tag then former[direction][old:byte(1)] = session end
    former[direction][tag:byte(1)] = nil
    tags[direction] = tag
  end
  session = session + 1
  sessions[pair] = session
  partial = {}
  return session
end

-- The session of a sound frame, 0 when the capture does not tell, and why its receiver drops it, if it does.
local function place(from, m, payload)
  if m.kind == RST then
    resetting[from] = payload ~= tags[from]
    return sessions[payload] or session
  end
  if m.kind == RSTACK then return begin_session(from, payload:sub(TAG_BYTES + 1), payload:sub(1, TAG_BYTES)) end
  local to = 3 - from
  if resetting[to] then return session, "its receiver has reset the link" end
  if tags[to] == nil or tags[to]:byte(1) == m.sess then return session end
  local old = former[to][m.sess]
  if old ~= nil then return old, "of session " .. old .. ", which has ended" end
  return session, "no tag of its receiver begins so"
end

local function assemble(pinfo, key, index, count, payload)
  if not pinfo.visited then
    local slices = partial[key] or { count = count, have = 0 }
    partial[key] = slices
    if slices.count ~= count then
      changed[pinfo.number] = true -- an end keeps what it has
      return nil
    end
    if slices[index] == nil then slices.have = slices.have + 1 end
    slices[index] = payload
    if slices.have == count then
      local parts = {}
      for number = 0, count - 1 do parts[number + 1] = slices[number] end
      whole[pinfo.number] = { text = table.concat(parts), again = delivered[key] }
      partial[key] = nil
      delivered[key] = true
    end
  end
  return whole[pinfo.number]
end

local function type_of(text)
  return text:match('"type":"([%w_]+)","v":%d+}$') or text:match('"type"%s*:%s*"([%w_]+)"') or "unreadable"
end

local function show_message(text, pinfo, subtree, tree)
  local name = type_of(text)
  local tvb = ByteArray.new(text, true):tvb("LINK/1 message")
  subtree:add(f.type, tvb(), name)
  subtree:add(f.text, tvb(), text)
  local json = Dissector.get("json")
  if json ~= nil then json:call(tvb, pinfo, tree) end
  return name
end

function link1.dissector(buffer, pinfo, tree)
  if buffer:len() < 2 then return 0 end
  local direction = buffer(0, 1):uint()
  local ends = ENDS[direction] or ENDS[0]
  local subtree = tree:add(link1, buffer())
  subtree:add(f.direction, buffer(0, 1))
  pinfo.cols.src, pinfo.cols.dst = ends[1], ends[2]
  pinfo.cols.protocol = "LINK/1"

  local function drop(why)
    subtree:add(f.dropped, buffer(1), why):set_generated()
    subtree:add_proto_expert_info(no_frame, "Dropped whole: " .. why)
    pinfo.cols.info = "dropped: " .. why
    return buffer:len()
  end

  local encoded = buffer(1):raw():gsub("%z+$", "")
  if #encoded > MAX_ENCODED_BYTES then return drop("too_long") end
  local raw = cobs_decode(encoded)
  if raw == nil then return drop("bad_cobs") end
  if #raw < HEADER_BYTES + CRC_BYTES then return drop("too_short") end
  local frame = ByteArray.new(raw, true):tvb("LINK/1 frame")
  local size = #raw - HEADER_BYTES - CRC_BYTES
  local m = { size = size, mid = frame(4, 2):uint() }
  for offset, name in pairs({ [0] = "ver", [1] = "kind", [2] = "chan", [3] = "sess", [6] = "index", [7] = "count" }) do
    m[name] = frame(offset, 1):uint()
  end
  local crc = frame(HEADER_BYTES + size, CRC_BYTES)
  m.good = crc32(raw:sub(1, -CRC_BYTES - 1)) == crc:uint()
  subtree:add(f.ver, frame(0, 1))
  subtree:add(f.kind, frame(1, 1))
  subtree:add(f.chan, frame(2, 1))
  subtree:add(f.sess, frame(3, 1))
  subtree:add(f.mid, frame(4, 2))
  subtree:add(f.index, frame(6, 1))
  subtree:add(f.count, frame(7, 1))
  if size > 0 then subtree:add(f.payload, frame(HEADER_BYTES, size)) end
  subtree:add(f.crc, crc)
  subtree:add(f.crc_good, crc, m.good):set_generated()
  local fault = fault_of(m)
  if fault ~= nil then return drop(fault) end

  local info = KINDS[m.kind]
  local payload = raw:sub(HEADER_BYTES + 1, HEADER_BYTES + size)
  if not pinfo.visited and ENDS[direction] and direction > 0 then
    local number, stale = place(direction, m, payload)
    placed[pinfo.number] = { number = number, stale = stale }
  end
  local at = placed[pinfo.number] or { number = 0 }
  if at.number > 0 then subtree:add(f.session, buffer(0, 0), at.number):set_generated() end
  if at.stale ~= nil then
    subtree:add(f.stale, frame(3, 1), at.stale):set_generated()
    subtree:add_proto_expert_info(not_in_session, "Not of the session: " .. at.stale)
  end
  if m.kind == RST then
    subtree:add(f.tag, frame(HEADER_BYTES, TAG_BYTES))
  elseif m.kind == RSTACK then
    subtree:add(f.answered_tag, frame(HEADER_BYTES, TAG_BYTES))
    subtree:add(f.tag, frame(HEADER_BYTES + TAG_BYTES, TAG_BYTES))
  elseif m.kind == HINT then
    info = info .. " " .. show_message(payload, pinfo, subtree, tree)
  elseif m.kind == DATA or m.kind == ACK then
    info = info .. " " .. CHANNELS[m.chan] .. " " .. m.mid
    if m.count > 1 then info = info .. string.format(" (%d/%d)", m.index + 1, m.count) end
    if m.kind == DATA and at.stale == nil then
      local key = string.format("%d %d %d %d %d", at.number, direction, m.chan, m.sess, m.mid)
      local message = assemble(pinfo, key, m.index, m.count, payload)
      if changed[pinfo.number] then return drop("count_changed") end
      if message ~= nil then
        info = info .. " " .. show_message(message.text, pinfo, subtree, tree)
        if message.again then
          subtree:add(f.again, buffer(0, 0), true):set_generated()
          info = info .. " (again)"
        end
      end
    end
  end
  if at.stale ~= nil then info = info .. " [" .. at.stale .. "]" end
  pinfo.cols.info = info
  return buffer:len()
end

DissectorTable.get("wtap_encap"):add(wtap.USER0, link1)
