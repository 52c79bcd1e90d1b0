"""What an endpoint's cache holds of conversations, and what it costs to store more there (pure).

A cache gives up what was used least recently. Whatever is stored makes all that lies there go earlier: by the time in
which as much is stored anyway. The conversations that return within just that time find nothing, and pay:

    wanted(x) = sum over contexts of their tokens · P(returns while x tokens earlier would have been x tokens later)

So what is about to go in any case costs little to push out, however likely it is to be wanted some day.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from zlib import crc32

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from forebay.router.odds import Odds

HALF_UNKNOWN = 0.5  # chance to be wanted of what nothing is known about
RUNNING = 2.0  # what one in use counts, against one that is idle (found by simulation)
_PRICED_S = 0.5  # a price is worked out anew after about this
_LOOKED = 64  # contexts that a price is worked out from: those there are, or so many among them
# Their places, in steps of as many contexts: at even distances, conversations that take turns with their helpers would
# be looked at without them, or they alone.
_PLACES = np.arange(_LOOKED) + np.arange(_LOOKED) * 0.618 % 1
_SIZES = np.array([1 << size for size in range(11, 21)], np.float64)  # tokens that a price is worked out for
_EARLIER = np.append(_SIZES, [0.0, np.inf])  # and what a context goes by in any case, and now


class Context(Struct, eq=False):
    """`tokens`: of its last prompt and answer. `idle_at`: when its last request ended; 0 while `running` some."""

    number: int
    tokens: int = 0
    endpoint: str = ""
    idle_at: float = 0.0
    running: int = 0
    returns: bool | None = None  # its last answer was a tool call
    first: int = 0  # key of its last prompt
    end: int = 0  # the last one
    before: int = 0  # one shortly before that
    session: str = ""


class Resident:
    """The contexts that an endpoint has had, the least recently used first."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.tokens = 0
        self.over = 0  # those of conversations that are over and have been forgotten
        self.capacity = math.inf  # tokens, as far as is known
        self.by_number: OrderedDict[int, tuple[Context, int]] = OrderedDict()
        self._priced_at = -math.inf
        self._stays_s = _PRICED_S * (0.75 + crc32(endpoint.encode()) / (1 << 33))  # not all of a pool at one moment
        self._wanted = np.zeros(len(_SIZES))
        self._behind = np.zeros(len(_SIZES))

    def use(self, context: Context, tokens: int) -> None:
        self.drop(context.number)
        self.by_number[context.number] = context, tokens
        self.tokens += tokens

    def drop(self, number: int) -> None:
        known = self.by_number.pop(number, None)
        if known is not None:
            self.tokens -= known[1]

    def finish(self, number: int) -> None:
        """It is over: what it left lies there until it goes, and nobody wants it."""
        before = self.tokens
        self.drop(number)
        self.over += before - self.tokens

    def trim(self, capacity: float) -> None:
        """Forget what cannot be there any more: the least recently used, down to `capacity` tokens."""
        self.capacity = capacity
        self.over = max(0, min(self.over, int(capacity - self.tokens)))
        while self.tokens > capacity and len(self.by_number) > 1:
            number, (context, tokens) = next(iter(self.by_number.items()))
            excess = math.ceil(self.tokens - capacity)
            if excess >= tokens:
                self.drop(number)
            else:
                self.by_number[number] = context, tokens - excess
                self.tokens -= excess

    def displaced(
        self, tokens: float, odds: Mapping[bool, Odds], inflow: float, now: float
    ) -> tuple[float, float]:
        """Tokens that are wanted again and will not be found if so many more are stored, where `inflow` are every
        second in any case; and how many tokens stand before one of them, on average."""
        if abs(now - self._priced_at) > self._stays_s:
            self._priced_at = now
            self._price(odds, inflow, now)
        if tokens <= _SIZES[0]:
            return float(self._wanted[0] * tokens / _SIZES[0]), float(self._behind[0])
        wanted = float(np.interp(tokens, _SIZES, self._wanted)) * max(1.0, tokens / _SIZES[-1])
        return wanted, float(np.interp(tokens, _SIZES, self._behind))

    def _price(self, odds: Mapping[bool, Odds], inflow: float, now: float) -> None:
        some = list(self.by_number.values())
        if len(some) > _LOOKED:
            some = [some[at] for at in (_PLACES * (len(some) / _LOOKED)).astype(int).tolist()]
        # What is in use will be idle, and then the most recently used; whether it returns is not known before it ends.
        some = [one for one in some if not one[0].running] + [one for one in some if one[0].running]
        held = np.array([tokens for _, tokens in some], np.float64)
        each = self.tokens / max(1.0, held.sum())  # one stands for so many of its size
        running = np.array([one.running > 0 for one, _ in some], bool)
        idle = np.maximum(0.0, now - np.array([one.idle_at for one, _ in some], np.float64))
        idle[running] = 0.0
        # Of what a cache holds beyond them nothing is known: it is older, and taken to be wanted by half.
        unknown = max(0.0, self.capacity - self.tokens - self.over) if self.capacity < math.inf else 0.0
        goes = unknown + self.over + each * (np.cumsum(held) - held / 2)  # tokens stored until each goes
        wanted, behind = HALF_UNKNOWN * np.minimum(_SIZES, unknown), np.zeros(len(_SIZES))
        here = np.array([one.endpoint == self.endpoint for one, _ in some], bool)  # the others return elsewhere
        calls = np.array([one.returns is True for one, _ in some], bool) | running
        for called, chances in odds.items():
            pick = here & (calls == called)
            missed = each * held[pick] * _missed(chances, idle[pick], goes[pick], inflow)
            missed[:, running[pick]] *= RUNNING
            wanted += missed.sum(axis=1)
            behind += (missed * held[pick] / 2).sum(axis=1)
        self._behind = behind / np.maximum(wanted, 1e-9)
        self._wanted = np.minimum(wanted, _SIZES)


def _missed(
    odds: Odds, idle: NDArray[np.float64], goes: NDArray[np.float64], inflow: float
) -> NDArray[np.float64]:
    """By size stored and by context: the chance that it returns after it has gone, and before it would have gone."""
    stay = odds.staying(idle + np.maximum(0.0, goes - _EARLIER[:, None]) / inflow)
    missed: NDArray[np.float64] = (stay[:-2] - stay[-2]) / stay[-1]
    return missed
