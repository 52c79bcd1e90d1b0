"""Figures by demand as an SVG file, a curve for each policy."""

from collections.abc import Mapping, Sequence
from html import escape

from forebay.platform.cli.plot import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH

_STYLE = 'font-family="sans-serif" font-size="12" fill="#222"'


def curves(title: str, below: str, series: Mapping[str, Sequence[tuple[float, float]]], *, unit: str = "") -> str:
    """`series`: by name, points of demand (1: what the pool can do) and value. With the unit "%" values are shares of
    1. The vertical axis begins at nought."""
    xs = [x for one in series.values() for x, _ in one]
    high = 1.0 if unit == "%" else max(y for one in series.values() for _, y in one) * 1.05
    low_x, high_x = min(xs), max(xs)

    def at(x: float, y: float) -> tuple[float, float]:
        return (LEFT + (x - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT),
                HEIGHT - BOTTOM - min(y / high, 1.0) * (HEIGHT - TOP - BOTTOM))  # fmt: skip

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {_STYLE}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = at(low_x, share * high)[1]
        label = f"{share:.0%}" if unit == "%" else f"{share * high / 1000:.0f}k"
        parts += [
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>',
        ]
    for value in sorted(set(xs)):
        x = at(value, 0)[0]
        parts += [
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>',
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{value:.0%}</text>',
        ]
    for number, (name, one) in enumerate(series.items()):
        colour, y = COLOURS[number % len(COLOURS)], TOP + 14 + 20 * number
        points = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in one)
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{2.5 if not number else 1.5}"/>',
            f'<rect x="{WIDTH - RIGHT + 16}" y="{y - 5}" width="24" height="3" fill="{colour}"/>',
            f'<text x="{WIDTH - RIGHT + 46}" y="{y}">{escape(name)}</text>',
        ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    return "\n".join([*parts, f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">{escape(below)}</text>',
                      "</svg>", ""])  # fmt: skip
