"""Which of an engine's numbered batches may be applied, and when what it holds is unknown (pure).

An engine numbers its batches from 0 at each start, and may have a replay of the latest. Numbers alone can lie: an
engine that came back may have reached the number that is expected of the one before. So the last batch that was applied
is kept, and a replay is asked for from that batch on: if it begins with the same bytes, the engine is the same and what
follows completes it; if not, it is another, and nothing of what was known is true any more.
"""

from collections import deque
from enum import StrEnum
from hashlib import blake2b

import msgspec
from msgspec import Struct

END = (1 << 64) - 1  # the number of the empty message that ends a replay


class Why(StrEnum):
    """Why nothing is known of what the engine holds."""

    GAP = "gap"  # batches are missing and no replay has them
    RESTART = "restart"
    AWAY = "away"  # the connection broke, and without a replay nobody can say whether the engine is the same
    UNREAD = "unread"  # a batch could not be read


class Apply(Struct, frozen=True):
    number: int
    payload: bytes

    def position(self) -> bytes:
        """Where the engine's events are once it is applied, for `Sequence.resume`."""
        return msgspec.msgpack.encode(_Position(self.number, _digest(self.payload)))


class Clear(Struct, frozen=True):
    why: Why


class Ask(Struct, frozen=True):
    """Ask the replay from batch `start` on; what an earlier question still brings is of no use."""

    start: int


class Gap(Struct, frozen=True):
    """Batches from `first` on did not come, and `number` did."""

    first: int
    number: int


class Result(StrEnum):
    COMPLETE = "complete"
    FAILED = "failed"  # silent, endless or with holes that do not close
    REFUSED = "refused"  # there were too many of them lately
    CUT = "cut"  # the connection broke


class Over(Struct, frozen=True):
    """No replay runs any more."""

    result: Result


Action = Apply | Clear | Ask | Gap | Over


class Limits(Struct, frozen=True):
    replays_a_minute: int = 6
    asks: int = 64  # of one replay: engines drop what does not fit their queue, and are asked again for the rest
    rows: int = 200_000  # of one replay, over all its asks
    idle_s: float = 3.0  # without an answer
    quiet_s: float = 0.5  # after rows: what follows them was dropped
    total_s: float = 60.0
    held: int = 10_000  # live batches that wait for the end of a replay
    held_bytes: int = 64 << 20


class _Last(Struct, frozen=True):
    """The batch that was applied last. `payload` is None where only its digest is known."""

    number: int
    digest: bytes = b""
    payload: bytes | None = None

    def is_(self, payload: bytes) -> bool:
        return _digest(payload) == self.digest if self.payload is None else payload == self.payload


class _Position(Struct, array_like=True, frozen=True):
    number: int
    digest: bytes


class _Replay(Struct):
    """One replay: `asks` questions until it is whole. The rest is about the latest question."""

    started: float
    heard: float
    rows: int = 0
    asks: int = 0
    proved: bool = False  # the engine is the one whose batches were applied
    hole: bool = False  # a row was missing: the rows after it are of no use
    progress: bool = False


class Sequence:
    """One publisher's batches. Each method takes what happened and returns what is to be done, in order."""

    def __init__(self, *, replay: bool, limits: Limits | None = None) -> None:
        self._has_replay = replay
        self._limits = limits or Limits()
        self._last: _Last | None = None
        self._next: int | None = None
        self._replay: _Replay | None = None
        self._begun: deque[float] = deque()
        self._held: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0

    def __repr__(self) -> str:
        doing = "replaying" if self._replay else "live"
        return f"<Sequence {doing}, next {self._next}, {len(self._held)} held>"

    @property
    def replaying(self) -> bool:
        return self._replay is not None

    @property
    def deadline(self) -> float | None:
        """When `tick` is due."""
        replay, limits = self._replay, self._limits
        if replay is None:
            return None
        patience = limits.quiet_s if replay.progress else limits.idle_s
        return min(replay.heard + patience, replay.started + limits.total_s)

    def resume(self, position: bytes) -> None:
        """Take what was applied up to a batch's `position` as known, until the engine is heard. Raises `ValueError`."""
        try:
            known = msgspec.msgpack.decode(position, type=_Position)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a position in KV events: {error}") from error
        self._last, self._next = _Last(known.number, known.digest), known.number + 1

    def reset(self) -> None:
        """Nothing is known, and nothing is under way; how often the replay was asked stays counted."""
        self._last = self._next = self._replay = None
        self._release()

    def connected(self, now: float) -> list[Action]:
        return self._begin(now) if self._has_replay else []

    def disconnected(self) -> list[Action]:
        """The connection broke. What it brought and was not applied is in the replay."""
        actions: list[Action] = [Over(Result.CUT)] if self._replay else []
        self._replay = None
        self._release()
        return actions if self._has_replay else actions + self._forget(Why.AWAY)

    def live(self, number: int, payload: bytes, now: float) -> list[Action]:
        """A batch came by subscription."""
        if self._replay:
            self._hold(number, payload)
            return []
        if number == self._next or self._next is None:
            return [self._apply(number, payload)]
        if number > self._next:
            return [Gap(self._next, number), *self._mend(number, payload, now, Why.GAP)]
        if self._last and number == self._last.number and self._last.is_(payload):
            return []
        return self._mend(number, payload, now, Why.RESTART)

    def again(self, number: int, payload: bytes, now: float) -> list[Action]:
        """A batch can be read after one that could not: learn anew what the engine holds."""
        return self._mend(number, payload, now, Why.UNREAD, anew=True)

    def replayed(self, number: int, payload: bytes, now: float) -> list[Action]:
        """A row of the replay came, or its end."""
        replay = self._replay
        if replay is None:
            return []
        replay.heard = now
        if number == END and not payload:
            return self._end(now)
        replay.rows += 1
        if replay.rows > self._limits.rows:
            return self._give_up(Result.FAILED)
        if replay.hole:
            return []
        if self._last is None:
            return [self._row(replay, number, payload)]
        if not replay.proved:
            return self._prove(replay, self._last, number, payload, now)
        if number > self._last.number + 1:
            replay.hole = True
        return [self._row(replay, number, payload)] if number == self._last.number + 1 else []

    def asked(self, now: float) -> None:
        """A question left for the replay."""
        if self._replay is not None:
            self._replay.heard = now

    def tick(self, now: float) -> list[Action]:
        """Time passed, and nothing waits to be handed in."""
        replay = self._replay
        if replay is None or self.deadline is None or now < self.deadline:
            return []
        if replay.progress and now < replay.started + self._limits.total_s:
            return self._ask(replay, now)
        return self._give_up(Result.FAILED)

    def _mend(self, number: int, payload: bytes, now: float, why: Why, *, anew: bool = False) -> list[Action]:
        """What is known may be wrong: ask, or else begin with this batch. `anew`: ask for everything."""
        actions = self._forget(why) if anew or not self._has_replay else []
        if not self._has_replay:
            return [*actions, self._apply(number, payload)]
        self._hold(number, payload)
        return actions + self._begin(now)

    def _begin(self, now: float) -> list[Action]:
        while self._begun and self._begun[0] <= now - 60.0:
            self._begun.popleft()
        if len(self._begun) >= self._limits.replays_a_minute:
            return self._give_up(Result.REFUSED)
        self._begun.append(now)
        self._replay = _Replay(now, now)
        return self._ask(self._replay, now)

    def _ask(self, replay: _Replay, now: float) -> list[Action]:
        replay.asks += 1
        if replay.asks > self._limits.asks:
            return self._give_up(Result.FAILED)
        replay.heard, replay.proved, replay.hole, replay.progress = now, False, False, False
        return [Ask(self._last.number if self._last else 0)]

    def _row(self, replay: _Replay, number: int, payload: bytes) -> Apply:
        replay.proved = replay.progress = True
        return self._apply(number, payload)

    def _prove(self, replay: _Replay, last: _Last, number: int, payload: bytes, now: float) -> list[Action]:
        """What the first row says of the engine: it should be the batch that was applied last."""
        if number < last.number:
            return []
        if number > last.number:  # the replay does not reach back so far
            return [*self._forget(Why.GAP), self._row(replay, number, payload)]
        if last.is_(payload):
            replay.proved = True
            return []
        return [*self._forget(Why.RESTART), *self._ask(replay, now)]

    def _end(self, now: float) -> list[Action]:
        replay = self._replay
        assert replay is not None
        if self._last is not None and not replay.proved:  # the engine has not come so far
            return [*self._forget(Why.RESTART), *self._ask(replay, now)]
        if replay.hole:
            return self._ask(replay, now) if replay.progress else self._give_up(Result.FAILED)
        self._replay = None
        if self._next is None:
            self._next = 0  # it has published nothing
        actions: list[Action] = []
        while self._held:
            number, payload = self._held[0]
            if number > self._next:
                return [*actions, Over(Result.COMPLETE), Gap(self._next, number), *self._begin(now)]
            self._held.popleft()
            self._held_bytes -= len(payload)
            if number == self._next:
                actions.append(self._apply(number, payload))
        return [*actions, Over(Result.COMPLETE)]

    def _give_up(self, result: Result) -> list[Action]:
        """No replay helps: nothing is known but the latest batches that follow each other."""
        actions = [Over(result), *self._forget(Why.GAP)]
        self._replay = None
        held = list(self._held)
        self._release()
        start = next((i for i in range(len(held) - 1, 0, -1) if held[i][0] != held[i - 1][0] + 1), 0)
        return actions + [self._apply(number, payload) for number, payload in held[start:]]

    def _forget(self, why: Why) -> list[Action]:
        known = self._last is not None
        self._last = self._next = None
        return [Clear(why)] if known else []

    def _apply(self, number: int, payload: bytes) -> Apply:
        self._last, self._next = _Last(number, payload=payload), number + 1
        return Apply(number, payload)

    def _hold(self, number: int, payload: bytes) -> None:
        """Keep it for the end of the replay. Of what is too much the latest is left out, and missed as a gap."""
        if len(self._held) < self._limits.held and self._held_bytes + len(payload) <= self._limits.held_bytes:
            self._held.append((number, payload))
            self._held_bytes += len(payload)

    def _release(self) -> None:
        self._held.clear()
        self._held_bytes = 0


def parse(frames: list[bytes]) -> tuple[int, bytes]:
    """Number and payload of a message, with or without a topic before them. Raises `ValueError`."""
    if len(frames) not in (2, 3):
        raise ValueError(f"a message has 2 or 3 frames, not {len(frames)}")
    if len(frames[-2]) != 8:
        raise ValueError(f"a sequence number has 8 bytes, not {len(frames[-2])}")
    return int.from_bytes(frames[-2], "big"), frames[-1]


def _digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=16).digest()
