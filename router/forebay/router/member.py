"""One endpoint as the core sees it, and what predictions in its pool were worth (pure)."""

import math

from msgspec import Struct, field

from forebay.router.company import Company
from forebay.router.guesses import BLOCK
from forebay.router.health import WHOLE, Condition
from forebay.router.loads import Load
from forebay.router.placement import Option
from forebay.router.prefix.keys import GRID
from forebay.router.rates import Rates
from forebay.router.routing import Following, Group, Role

COMING_S = 60.0  # over which arrivals are averaged


class Counts(Struct):
    """What predictions were worth, since the start. Tokens are of requests whose engine said how many were cached."""

    prompt_tokens: int = 0
    predicted: int = 0
    observed: int = 0
    more: int = 0  # requests that found a block more than predicted
    less: int = 0
    placements: dict[str, int] = field(default_factory=dict)  # by reason

    def placed(self, option: Option, most: int) -> None:
        """`most`: tokens that the endpoint which holds most of this prompt holds."""
        reason = "cold" if not most else "cached" if option.cached == most else "moved"
        self.placements[reason] = self.placements.get(reason, 0) + 1

    def compare(self, prompt_tokens: int, predicted: int, observed: int) -> None:
        self.prompt_tokens += prompt_tokens
        self.predicted += predicted
        self.observed += observed
        self.more += observed > predicted + BLOCK
        self.less += observed < predicted - BLOCK


class Member:
    """One endpoint."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.condition = Condition(name)
        self.following = Following.NONE
        self.load = Load(name)
        self.company = Company()
        self.own = Rates()
        self.rates = Rates()  # what to reckon with
        self.gone = False  # its process has ended, and what it held with it
        self.block = GRID  # tokens of a block of its cache
        self.blocks = 0  # that it held at most
        self._coming = 0.0
        self._came_at = 0.0
        self.full = False  # it has given up blocks for others: it holds no more than it did
        self.draining = ""  # why it is sent nothing new
        self.group = Group()
        self.standing = WHOLE  # as in its condition; out while it is shut

    def __repr__(self) -> str:
        return f"<Member {self.name} {self.condition.health} [{self.load.in_flight} in flight, {self.following}]>"

    def coming(self, now: float) -> float:
        """Requests a second that were sent there lately."""
        return self._coming * math.exp(min(0.0, self._came_at - now) / COMING_S)

    def came(self, now: float, requests: int = 1) -> None:
        self._coming = self.coming(now) + requests / COMING_S
        self._came_at = now

    @property
    def shut(self) -> bool:
        """Sent nothing new, however well it is."""
        return bool(self.draining) or self.group.role is not Role.UNIFIED

    @property
    def followed(self) -> bool:
        """Whether events will tell what it holds."""
        return self.following is Following.FOLLOWING
