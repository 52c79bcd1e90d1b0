"""Tiers of service (pure): what an operator promises to requests of each, and what becomes of them when engines are
short.

`Shed.HOLD`: a request waits as long as its tier allows, and is refused at once only where it would wait longer.
`SHED`: it is refused as soon as its objective would be missed, and may be stopped for one of a higher tier.
`DOWNGRADE`: where its objective would be missed, it is served in the next lower tier that lets it in, shed or not.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum

from msgspec import Struct

DEFAULT = "default"


class Shed(StrEnum):
    HOLD = "hold"
    SHED = "shed"
    DOWNGRADE = "downgrade"


class Tier(Struct, frozen=True):
    """`rank`: 0 goes first, and those of one rank together. `ttft_s`, `tpot_s`: objectives, seconds to the first token
    and for each one after it; None promises nothing. `queue_s`: how long a request may wait for an engine; `cold_s`:
    the same while a pool has no endpoint. `share`: of the work of a pool, the part that the tier gets at least while it
    has any to do, 0 to 1."""

    name: str = DEFAULT
    rank: int = 0
    ttft_s: float | None = None
    tpot_s: float | None = None
    queue_s: float = 60.0
    cold_s: float = 0.0
    shed: Shed = Shed.HOLD
    share: float = 0.0


class Tiers:
    """A deployment's, by rank. `default` is that of requests which name none, or one that is not known."""

    def __init__(self, tiers: Iterable[Tier] = (Tier(),), default: str | None = None) -> None:
        self._tiers = sorted(tiers, key=lambda tier: tier.rank)
        self._by_name = {tier.name: tier for tier in self._tiers}
        self.default = self._by_name[default] if default is not None else self._tiers[0]

    def __repr__(self) -> str:
        return f"<Tiers {[tier.name for tier in self._tiers]}>"

    def __iter__(self) -> Iterator[Tier]:
        return iter(self._tiers)

    def __len__(self) -> int:
        return len(self._tiers)

    def __getitem__(self, name: str) -> Tier:
        return self._by_name.get(name, self.default)

    def below(self, tier: Tier) -> Tier | None:
        """The next lower one."""
        return next((one for one in self._tiers if one.rank > tier.rank), None)
