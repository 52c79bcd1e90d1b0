"""How long requests wait for their first token, by policy, as an SVG file."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 190, 40, 50
LEAST_S = 0.01  # where the axis begins, at the least
_STYLE = 'font-family="sans-serif" font-size="12" fill="#222"'
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")  # told apart by everyone


def distributions(title: str, series: Mapping[str, Sequence[float]]) -> str:
    """`series`: by name, the percentiles 0 to 100 of seconds. A curve each: the share of requests (upwards) that had
    their first token within so many seconds (to the right, each line ten times the one before)."""
    values = [max(value, LEAST_S) for one in series.values() for value in one]
    low = 10.0 ** math.floor(math.log10(min(values, default=LEAST_S)))
    high = max(10.0 ** math.ceil(math.log10(max(values, default=1.0))), low * 10)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {_STYLE}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
        *_grid(low, high),
    ]
    for number, (name, one) in enumerate(series.items()):
        colour, y = COLOURS[number % len(COLOURS)], TOP + 14 + 20 * number
        points = " ".join(
            f"{_x(value, low, high):.1f},{_y(share / (len(one) - 1)):.1f}" for share, value in enumerate(one)
        )
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{2.5 if not number else 1.5}"/>',
            f'<rect x="{WIDTH - RIGHT + 16}" y="{y - 5}" width="24" height="3" fill="{colour}"/>',
            f'<text x="{WIDTH - RIGHT + 46}" y="{y}">{escape(name)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _grid(low: float, high: float) -> list[str]:
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 0.95, 1.0):
        y = _y(share)
        parts += [
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>',
        ]
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        x = _x(10.0**power, low, high)
        parts += [
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>',
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10.0**power:g} s</text>',
        ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*parts, f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">time to first token</text>']


def _x(seconds: float, low: float, high: float) -> float:
    share = math.log(max(seconds, low) / low) / math.log(high / low)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
