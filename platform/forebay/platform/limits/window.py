"""Windows of a minute that begin anew at a fixed moment, whoever counts in them (pure). Milliseconds of Unix time.

Each tenant's minute begins at a moment of its own, so that they do not all come back at once; it is the same for its
projects and keys.
"""

import math
import time
from zlib import crc32

from msgspec import Struct

WINDOW_MS = 60_000


def phase_of(tenant_id: str) -> int:
    return crc32(tenant_id.encode()) % WINDOW_MS


class Window(Struct, frozen=True):
    number: int
    left_ms: int


def window(now_ms: int, phase: int) -> Window:
    number, into = divmod(now_ms + phase, WINDOW_MS)
    return Window(number, WINDOW_MS - into)


class Clock:
    """Valkey's, as last heard, carried forward by ours: it cannot be set, and all front doors agree on it."""

    def __init__(self) -> None:
        self._offset_ms = time.time() * 1000 - _ticks()

    def now_ms(self) -> int:
        return int(_ticks() + self._offset_ms)

    def heard(self, now_ms: int) -> None:
        self._offset_ms = now_ms - _ticks()


def _ticks() -> float:
    return time.monotonic() * 1000


def duration(ms: int) -> str:
    """As OpenAI writes it: `6m0s`, `1s`, `20ms`; whole seconds are rounded up."""
    if ms < 1000:
        return f"{max(0, ms)}ms"
    minutes, seconds = divmod(math.ceil(ms / 1000), 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
