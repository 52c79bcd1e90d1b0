"""Durations and moments as people type them."""

import math
import re
import time
from datetime import UTC, datetime
from typing import Any

import click

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)")
_LATEST = 253_402_300_799.0  # the year 9999
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_duration(text: str) -> float | None:
    """Seconds of `90`, `90s`, `15m`, `12h`, `30d` or `2w`; None if it is none of these."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    seconds = float(match[1]) * _SECONDS[match[2]]
    return seconds if math.isfinite(seconds) else None


def parse_iso(text: str) -> float | None:
    """Unix seconds of a date or time in ISO 8601, UTC unless it says otherwise; None if it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class Duration(click.ParamType[float]):
    """Seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = value if isinstance(value, int | float) else parse_duration(value)
        if seconds is None:
            self.fail(f"{value!r} is not a duration like 30s, 15m, 12h or 7d", param, ctx)
        return float(seconds)


class Until(click.ParamType[float]):
    """Unix seconds of a duration from now, or of a date or time in ISO 8601 (UTC unless it says otherwise)."""

    name = "duration or time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        seconds = parse_duration(value)
        moment = parse_iso(value) if seconds is None else time.time() + seconds
        if moment is None:
            self.fail(f"{value!r} is neither a duration like 30d nor a time like 2027-01-31T12:00", param, ctx)
        return moment


class Moment(click.ParamType[float]):
    """A time: so long ago (`90s`, `24h`, `7d`), a date or time in ISO 8601 (UTC unless it says), or Unix seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        moment = value if isinstance(value, float) else self._read(value)
        if moment is None:
            self.fail(f"{value!r} is neither a time like 2026-11-30T12:00 nor an age like 24h", param, ctx)
        if not 0 <= moment <= _LATEST:
            self.fail(f"{value!r} is out of range", param, ctx)
        return moment

    def _read(self, value: str) -> float | None:
        if value.isascii() and value.isdigit() and len(value) > 8:
            return float(value)
        ago = parse_duration(value)
        if ago is not None:
            return time.time() - ago
        return parse_iso(value)
