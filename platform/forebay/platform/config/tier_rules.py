"""What must hold between tiers: a table that contradicts itself is no promise."""

from typing import Any

from forebay.platform.config.faults import Path, Report
from forebay.platform.config.tiers import default_of

Data = dict[str, Any]
Placed = tuple[Path, Data]  # a tier, and where it stands
MOST = 32  # each has metrics and a queue of its own in every pool
_SLACK = 1e-9  # of a sum of decimal fractions


def tiers(placed: list[Placed], timeouts: Data | None, report: Report) -> None:
    """`placed`: the sound entries of `tiers`."""
    if len(placed) > MOST:
        report.fault(("tiers",), f"{len(placed)} tiers are too many", f"keep at most {MOST}")
    for path, tier in placed:
        if tier["name"] == "auto":
            problem = "'auto' is how a request asks for the default tier"
            report.fault((*path, "name"), problem, "give the tier another name")
        _waits(path, tier, timeouts, report)
    _defaults(placed, report)
    _shares(placed, report)
    ordered = sorted((one for one in placed if one[1]["rank"] is not None), key=lambda one: one[1]["rank"])
    for name in ("ttft", "tpot"):
        _not_inverted(ordered, name, report)
    for path, tier in ordered:
        if tier["shed"] == "downgrade":
            _downgrade(path, tier, [one for one in ordered if one[1]["rank"] > tier["rank"]], report)


def _waits(path: Path, tier: Data, general: Data | None, report: Report) -> None:
    """Its own bounds with the general ones where it has none."""
    def bound(name: str, unset: str | None = None) -> float | None:
        value: float | None = tier[name]
        faulty = value is None and (*path, name) in report.lines
        return value if value is not None or faulty or general is None else general[unset or name]

    def within(low: str, below: float | None, high: str, above: float | None, why: str) -> None:
        if below is not None and above is not None and below > above:
            given = report.given((*path, low), (*path, high))
            if given in report.lines:
                report.fault(given, f"{low} ({below:g} s) is not within {high} ({above:g} s)",
                             f"lower {low} or raise {high}: {why}")  # fmt: skip

    within("tpot", tier["tpot"], "idle", bound("idle"), "a pause would end the stream before the objective is missed")
    ttft, first_byte, total = tier["ttft"], bound("firstByte"), bound("total")
    within("ttft", ttft, "firstByte", first_byte, "the engine would be given up on before the objective is missed")
    for name, value in (("queue", tier["queue"]), ("firstByte", first_byte), ("idle", bound("idle"))):
        within(name, value, "total", total, "total bounds the whole request")
    connect = general["connect"] if general else None
    if connect is not None and tier["firstByte"] is not None and connect >= tier["firstByte"]:
        problem = f"timeouts.connect ({connect:g} s) is not below firstByte ({tier['firstByte']:g} s)"
        report.fault((*path, "firstByte"), problem, "raise firstByte: connecting is a part of it")


def _defaults(placed: list[Placed], report: Report) -> None:
    said = [(path, tier) for path, tier in placed if tier["default"]]
    for path, tier in said[1:]:
        problem = f"'{tier['name']}' is the default beside '{said[0][1]['name']}'"
        report.fault((*path, "default"), problem, "keep one default")
    found = default_of([(tier["name"], bool(tier["default"]), tier["access"] != "granted") for _, tier in placed])
    if placed and found is None:
        problem = "no tier is open, so that nothing serves requests which name none"
        report.fault(("tiers",), problem, "set access: open at one of them")
    elif found is not None and placed[found][1]["access"] == "granted":
        path, tier = placed[found]
        problem = f"'{tier['name']}' serves requests that name no tier, and not every project may use it"
        report.fault((*path, "access"), problem, "write open, or default: true at a tier that is")


def _shares(placed: list[Placed], report: Report) -> None:
    total, told = 0.0, False
    for path, tier in placed:
        total += tier["share"] or 0.0
        if total > 1 + _SLACK and not told:
            told = True
            at = (*path, "share")
    if told:
        report.fault(at, f"the minimum shares add up to {total:g}", "lower them to 1 together")


def _not_inverted(ordered: list[Placed], name: str, report: Report) -> None:
    """A tier that goes first is promised no less than those after it."""
    slowest: Data | None = None
    for path, tier in ordered:
        if tier[name] is None:
            continue
        if slowest is not None and tier[name] < slowest[name] and tier["rank"] != slowest["rank"]:
            problem = f"{name} ({tier[name]:g} s) is shorter than that of '{slowest['name']}' ({slowest[name]:g} s), "
            report.fault((*path, name), f"{problem}which goes first", "raise it, or change their ranks")
        if slowest is None or tier[name] > slowest[name]:
            slowest = tier


def _downgrade(path: Path, tier: Data, lower: list[Placed], report: Report) -> None:
    at = (*path, "shed")
    if not lower:
        report.fault(at, "no tier is below it to be downgraded to", "write hold or shed")
    elif tier["ttft"] is None and (*path, "ttft") not in report.lines:
        report.fault(at, "downgrade without ttft has no effect", "set ttft, the objective that would be missed")
    for there, one in lower:
        if tier["multiplier"] is not None and one["multiplier"] is not None and one["multiplier"] > tier["multiplier"]:
            problem = f"{one['multiplier']} is more than '{tier['name']}' costs, which is downgraded to it"
            report.fault((*there, "multiplier"), problem, f"write at most {tier['multiplier']}, or raise that one")
