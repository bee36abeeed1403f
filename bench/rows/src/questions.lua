-- What wrk asks: each time another pseudo-random row of `ROWS`, or the page of the tenant it belongs to.
-- The generator is Park and Miller's (1988), which is exact in Lua's numbers.
local PATH, POINT, ROWS, PER_TENANT = "@PATH@", @POINT@, @ROWS@, @PER_TENANT@
local head = "POST " .. PATH .. " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
local format = string.format
local n = @SEED@

function request()
   n = n * 48271 % 2147483647
   local id = n % ROWS
   local user = (id - id % PER_TENANT) / PER_TENANT
   local body
   if POINT then
      body = format('{"user_id":%d,"file_id":%d}', user, id)
   else
      body = format('{"user_id":%d,"limit":100}', user)
   end
   return head .. #body .. "\r\n\r\n" .. body
end

function done(summary, latency)
   local errors = summary.errors
   io.write(format("@MARK@ %d %d %d %d %d %d %d\n", summary.requests, summary.duration, summary.bytes, errors.status,
      errors.connect + errors.read + errors.write + errors.timeout, latency:percentile(50), latency:percentile(99)))
end
