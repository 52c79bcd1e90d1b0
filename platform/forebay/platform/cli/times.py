"""Durations and moments as people type them."""

import math
import re
import time
from datetime import UTC, datetime
from typing import Any

import click

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_duration(text: str) -> float | None:
    """Seconds of `90`, `90s`, `15m`, `12h`, `30d` or `2w`; None if it is none of these."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    seconds = float(match[1]) * _SECONDS[match[2]]
    return seconds if math.isfinite(seconds) else None


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
        if seconds is not None:
            return time.time() + seconds
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is neither a duration like 30d nor a time like 2027-01-31T12:00", param, ctx)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
