"""Tiers of service as the front door knows them (pure): which one a request gets, and what that one means to it."""

from collections.abc import Collection
from decimal import Decimal

import msgspec
from msgspec import Struct

from forebay.platform.config.model import Config, Timeouts
from forebay.platform.config.nearest import nearest
from forebay.platform.config.tiers import default_of
from forebay.platform.errors import ApiError, invalid
from forebay.router import DEFAULT, Shed, Tier, Tiers

# OpenAI's own names. Those that the operator does not declare are accepted, and mean the default.
KNOWN = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")


class Terms(Struct, frozen=True):
    """What a tier means to a request that is served in it. `timeouts`: the general ones, but for its own."""

    name: str
    rank: int
    timeouts: Timeouts
    multiplier: Decimal
    is_open: bool = True
    ttft_s: float | None = None
    tpot_s: float | None = None


class TierTable:
    """The terms of each tier, by name. One that is not declared has those of the default."""

    def __init__(self, terms: Collection[Terms], default: str) -> None:
        self._terms = {one.name: one for one in terms}
        self.default = self._terms[default]

    def __repr__(self) -> str:
        return f"<TierTable {', '.join(self._terms)} [default: {self.default.name}]>"

    def __getitem__(self, name: str) -> Terms:
        return self._terms.get(name, self.default)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._terms)

    def usable(self, granted: Collection[str] | None) -> list[Terms]:
        """What a project may use whose list of tiers is `granted`: those of the list that are declared, or without a
        list all that are open; and the default, but where each of the list is below it."""
        if granted is None:
            return [one for one in self._terms.values() if one.is_open or one is self.default]
        listed = [one for one in self._terms.values() if one.name in granted]
        below = bool(listed) and all(one.rank > self.default.rank for one in listed)
        return listed if below or self.default in listed else [self.default, *listed]

    def choose(self, asked: str | None, granted: Collection[str] | None) -> str:
        """The tier that serves a request with this `service_tier`. One that is not for its project, or that is OpenAI's
        and not declared, is served as the default: never more dearly. Raises `ApiError` 400 for other names."""
        usable = self.usable(granted)
        default = self.default if self.default in usable else min(usable, key=lambda one: one.rank)
        if asked is None or any(one.name == asked for one in usable):
            return asked or default.name
        if asked in KNOWN or asked in self._terms:
            return default.name
        raise _unknown(asked, [one.name for one in usable])


def _unknown(asked: str, usable: list[str]) -> ApiError:
    found = nearest(asked, [*usable, *KNOWN])
    hint = f" Did you mean '{found}'?" if found else ""
    names = ", ".join(dict.fromkeys(["auto", *usable]))
    return invalid(
        f"Invalid value for 'service_tier': '{asked[:40]}' is not one of: {names}.{hint}",
        param="service_tier",
        code="invalid_value",
    )


def table_of(config: Config) -> TierTable:
    general = config.timeouts
    if not config.tiers:
        return TierTable([Terms(DEFAULT, 0, general, Decimal(1))], DEFAULT)
    terms = []
    for tier in config.tiers:
        own = {name: getattr(tier, name) for name in ("queue", "first_byte", "idle", "total")}
        timeouts = msgspec.structs.replace(general, **{name: value for name, value in own.items() if value is not None})
        is_open = tier.access == "open"
        terms.append(Terms(tier.name, tier.rank, timeouts, tier.multiplier, is_open, tier.ttft, tier.tpot))
    return TierTable(terms, _default(config))


def tiers_of(config: Config) -> Tiers:
    """What the router is told of them."""
    if not config.tiers:
        return Tiers([Tier(DEFAULT, queue_s=config.timeouts.queue)])
    return Tiers(
        [
            Tier(
                name=tier.name,
                rank=tier.rank,
                ttft_s=tier.ttft,
                tpot_s=tier.tpot,
                queue_s=config.timeouts.queue if tier.queue is None else tier.queue,
                cold_s=tier.cold,
                shed=Shed(tier.shed),
                share=tier.share,
            )
            for tier in config.tiers
        ],
        _default(config),
    )


def _default(config: Config) -> str:
    """Raises `TypeError` for tiers that no check would let pass."""
    found = default_of([(tier.name, tier.default, tier.access == "open") for tier in config.tiers])
    return config.tiers[found].name  # type: ignore[index]
