"""What Valkey does for a limit, each in one step: scripts, and how they are called (pure).

A window's count is a hash: `w` the window's number, `n` what all have spent in it, `p<process>` what each has, by which
Valkey notices what it missed. A slot is a member of a sorted set, whose score is when its lease ends. The time is
Valkey's own. All keys of a call are of one tenant, which their names have in braces: a cluster keeps them together.
Replies are numbers in one string, which is quicker to read than a list.
"""

import hashlib
from collections.abc import Iterable, Sequence

from msgspec import Struct

from forebay.platform.limits.mirror import Spent
from forebay.platform.limits.rules import Check
from forebay.platform.limits.window import WINDOW_MS, Window

_TIME = f"""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function window(phase) return math.floor((now + phase) / {WINDOW_MS}) end
local function ends(phase) return (window(phase) + 1) * {WINDOW_MS} - phase end
local function spend(key, phase, process, number)
  if tonumber(redis.call('HGET', key, 'w') or -1) ~= window(phase) then
    redis.call('DEL', key)
    redis.call('HSET', key, 'w', window(phase))
    redis.call('PEXPIREAT', key, ends(phase))
  end
  redis.call('HINCRBY', key, process, number)
  return redis.call('HINCRBY', key, 'n', number)
end
local function missed(key, phase, process, claimed, believed)
  if believed ~= window(phase) then return 0 end
  local had = redis.call('HMGET', key, 'w', process)
  return claimed - (tonumber(had[1] or -1) == window(phase) and tonumber(had[2] or 0) or 0)
end
"""
# ARGV: request, lease, phase, process, believed window; for each key: 1 for a slot, limit, cost, claimed.
_RESERVE = """
local request, process = ARGV[1], ARGV[4]
local lease, phase, believed = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[5])
local used, refused = {}, 0
for i, key in ipairs(KEYS) do
  local at = 2 + 4 * i
  if ARGV[at] == '1' then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    used[i] = redis.call('ZCARD', key)
  else
    local more = missed(key, phase, process, tonumber(ARGV[at + 3]), believed)
    if more > 0 then spend(key, phase, process, more) end
    local had = redis.call('HMGET', key, 'w', 'n')
    used[i] = tonumber(had[1] or -1) == window(phase) and tonumber(had[2] or 0) or 0
  end
  if refused == 0 and used[i] + tonumber(ARGV[at + 2]) > tonumber(ARGV[at + 1]) then refused = i end
end
if refused == 0 then
  for i, key in ipairs(KEYS) do
    local at = 2 + 4 * i
    if ARGV[at] == '1' then
      redis.call('ZADD', key, now + lease, request)
      redis.call('PEXPIRE', key, lease)
      used[i] = used[i] + 1
    else
      used[i] = spend(key, phase, process, tonumber(ARGV[at + 2]))
    end
  end
end
return table.concat({refused, now, window(phase), ends(phase) - now, unpack(used)}, ' ')
"""
# ARGV: request, phase, process, window of the reservation; for each key: 1 for a slot, and what is spent in addition.
# Less is spent only in the window of the reservation, if that is not over; more in the present one.
_SETTLE = """
local request, phase, process, booked = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
for i, key in ipairs(KEYS) do
  local more = tonumber(ARGV[4 + 2 * i])
  if ARGV[3 + 2 * i] == '1' then
    redis.call('ZREM', key, request)
  elseif more > 0 then
    spend(key, phase, process, more)
  elseif more < 0 and booked == window(phase) then
    local had = redis.call('HMGET', key, 'w', 'n', process)
    if tonumber(had[1] or -1) == booked then
      more = math.max(more, -tonumber(had[2] or 0), -tonumber(had[3] or 0))
      spend(key, phase, process, more)
    end
  end
end
return '0'
"""
# ARGV: lease, and the requests that hold slots of the one key.
_RENEW = """
local lease = tonumber(ARGV[1])
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], now + lease, ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], lease)
return '0'
"""
# ARGV: process, phase, window, spent in it: no more and no less, whatever was done of what went unanswered.
_CLAIM = """
local more = missed(KEYS[1], tonumber(ARGV[2]), ARGV[1], tonumber(ARGV[4]), tonumber(ARGV[3]))
if more ~= 0 then spend(KEYS[1], tonumber(ARGV[2]), ARGV[1], more) end
return '0'
"""
# ARGV: process, lease. How many processes there are.
_PRESENT = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
redis.call('PEXPIRE', KEYS[1], tonumber(ARGV[2]))
return table.concat({now, redis.call('ZCARD', KEYS[1])}, ' ')
"""


class Script:
    def __init__(self, text: str) -> None:
        self.text = (_TIME + text).encode()
        self._sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()

    def call(self, keys: Sequence[bytes], arguments: Iterable[bytes]) -> bytes:
        return packed(b"EVALSHA", self._sha, b"%d" % len(keys), *keys, *arguments)

    def load(self) -> bytes:
        return packed(b"SCRIPT", b"LOAD", self.text)


RESERVE, SETTLE, RENEW, CLAIM, PRESENT = SCRIPTS = tuple(
    map(Script, (_RESERVE, _SETTLE, _RENEW, _CLAIM, _PRESENT))
)


class Reply(Struct, frozen=True):
    """`refused`: which check failed, if any did; then `used` is without the request."""

    refused: int | None
    now_ms: int
    window: Window
    used: list[int]


def packed(*words: bytes) -> bytes:
    """A command as it travels."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def reserve(
    request: bytes,
    phase: int,
    process: bytes,
    checks: Sequence[Check],
    *,
    lease_ms: int,
    window: int,
    claimed: Sequence[int],
) -> bytes:
    """`claimed`: of each check, what this process has spent in the window, as far as it knows."""
    arguments = [request, b"%d" % lease_ms, b"%d" % phase, process, b"%d" % window]
    for check, had in zip(checks, claimed, strict=True):
        arguments += (b"1" if check.kind.held else b"0", b"%d" % check.limit, b"%d" % check.cost, b"%d" % had)
    return RESERVE.call([check.key for check in checks], arguments)


def reply(data: bytes) -> Reply:
    refused, now, number, left, *used = map(int, data.split())
    return Reply(refused - 1 if refused else None, now, Window(number, left), used)


def settle(
    request: bytes, phase: int, process: bytes, window: int, changes: Sequence[tuple[bytes, int | None]]
) -> bytes:
    """`changes`: of each key, what is spent in addition; None gives its slot back."""
    arguments = [request, b"%d" % phase, process, b"%d" % window]
    for _, more in changes:
        arguments += (b"1", b"0") if more is None else (b"0", b"%d" % more)
    return SETTLE.call([key for key, _ in changes], arguments)


def renew(key: bytes, lease_ms: int, requests: Sequence[bytes]) -> bytes:
    return RENEW.call([key], [b"%d" % lease_ms, *requests])


def claim(key: bytes, process: bytes, spent: Spent) -> bytes:
    return CLAIM.call([key], [process, b"%d" % spent.phase, b"%d" % spent.window, b"%d" % spent.count])


def present(key: bytes, process: bytes, lease_ms: int) -> bytes:
    return PRESENT.call([key], [process, b"%d" % lease_ms])
