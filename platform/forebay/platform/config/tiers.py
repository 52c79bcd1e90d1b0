"""`tiers:` of the configuration: what requests of each `service_tier` are promised."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Literal

from msgspec import Meta

from forebay.platform.config.words import Seconds, Section

TierName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z][a-z0-9_-]{0,31}$",
        extra={"expects": "up to 32 small letters, digits, _ or -, a letter first"},
    ),
]
Multiplier = Annotated[
    Decimal,
    Meta(
        extra_json_schema={"pattern": r"^[0-9]{1,4}(\.[0-9]{1,12})?$", "minimum": 0, "maximum": 9999},
        extra={"called": "multiplier"},
    ),
]


class Tier(Section, frozen=True):
    """What requests of a `service_tier` are promised, and what becomes of them when engines are short."""

    name: Annotated[TierName, Meta(description="Name, as tenants write it in `service_tier`.", examples=["priority"])]
    rank: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Its place: the lowest goes first, also in engines that know priorities. Tiers of one rank are "
            "peers: whose turn it is goes by tenants.",
        ),
    ]
    default: Annotated[
        bool,
        Meta(
            description="Whether it serves requests that name no tier. Where none says so, the tier called `default` "
            "does, else the first that is open."
        ),
    ] = False
    access: Annotated[
        Literal["open", "granted"],
        Meta(
            description="Which projects may use it beside those that list it: `open`, all without a list of tiers; "
            "`granted`, none."
        ),
    ] = "open"
    ttft: Annotated[
        Seconds | None, Meta(description="Objective: seconds to the first token; unset, nothing is promised.")
    ] = None
    tpot: Annotated[
        Seconds | None, Meta(description="Objective: seconds for each token after it; unset, nothing is promised.")
    ] = None
    queue: Annotated[
        Seconds | None, Meta(description="Seconds that a request may wait in the router; unset, `timeouts.queue`.")
    ] = None
    cold: Annotated[
        float, Meta(ge=0, le=86_400, description="Seconds that it may wait while its pool has no engine at all.")
    ] = 0.0
    shed: Annotated[
        Literal["hold", "shed", "downgrade"],
        Meta(
            description="When engines are short: `hold` waits as long as it may; `shed` is refused as soon as its "
            "objective would be missed, and may be stopped for a higher tier; `downgrade` is then served in the next "
            "lower tier."
        ),
    ] = "hold"
    share: Annotated[
        float, Meta(ge=0, le=1, description="Part of a pool's work that it gets at least while it has any to do.")
    ] = 0.0
    multiplier: Annotated[
        Multiplier, Meta(description="What a model's price is multiplied by.", examples=["1.5"])
    ] = Decimal(1)
    first_byte: Annotated[Seconds | None, Meta(description="Unset, `timeouts.firstByte`.")] = None
    idle: Annotated[Seconds | None, Meta(description="Unset, `timeouts.idle`.")] = None
    total: Annotated[Seconds | None, Meta(description="Unset, `timeouts.total`.")] = None


def default_of(tiers: Sequence[tuple[str | None, bool, bool]]) -> int | None:
    """Of tiers as (name, whether it says that it is the default, whether it is open), the place of the one that serves
    requests which name none. None where none does."""
    said = [i for i, (_, default, _) in enumerate(tiers) if default]
    called = [i for i, (name, _, _) in enumerate(tiers) if name == "default"]
    opened = [i for i, (_, _, is_open) in enumerate(tiers) if is_open]
    return next(iter(said + called + opened), None)
