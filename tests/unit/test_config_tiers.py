"""A table of tiers that contradicts itself is refused, with the reason and the place; a sound one is not."""
# ruff: noqa: E501 - a message stands as it is printed

import pytest

from forebay.platform.config.load import check

FAST = "name: fast, rank: 0"
SLOW = "name: slow, rank: 1"


def said(tiers: str, before: str = "") -> list[str]:
    faults = check(f"apiVersion: forebay.dev/v1\n{before}\ntiers: [{tiers}]\n", "f", {})
    return [str(fault) for fault in faults]


@pytest.mark.parametrize(
    ("tiers", "fault"),
    [
        (f"{{{FAST}}}, {{name: fast, rank: 1}}", "f:3: tiers[1].name: tier 'fast' is taken, first in line 3; give each its own"),
        ("{name: auto, rank: 0}", "f:3: tiers[0].name: 'auto' is how a request asks for the default tier; give the tier another name"),
        ("{name: A b, rank: 0}", "f:3: tiers[0].name: 'A b' does not fit; write up to 32 small letters"),
        ("{name: fast}", "f:3: tiers[0].rank: is missing; write a whole number from 0 up to 1000"),
        (f"{{{FAST}, dfault: true}}", "f:3: tiers[0].dfault: unknown key; did you mean default?"),
        (f"{{{FAST}, shed: drop}}", "f:3: tiers[0].shed: 'drop' is not one of the choices; write downgrade, hold or shed"),
        ("{name: Fast, rank: 1}, {name: fast, rank: 0}", "f:3: tiers[0].name: 'Fast' does not fit; write up to 32 small letters"),
        ("{name: schnéll, rank: 0}", "f:3: tiers[0].name: 'schnéll' does not fit; write up to 32 small letters"),
        ("{name: 'f\u0430st', rank: 0}", "f:3: tiers[0].name: 'f\u0430st' does not fit"),  # a Cyrillic a
        (f"{{{FAST}, ttft: 1, ttft: 2}}", "f:3: tiers[0]: ttft is given twice, first in line 3; keep one"),
        ("null", "f:3: tiers[0]: is empty; write a mapping with keys such as name, rank, default"),
        # numbers that are none, or beyond bounds
        ("{name: fast, rank: -1}", "f:3: tiers[0].rank: -1 is too low; write a whole number from 0 up to 1000"),
        ("{name: fast, rank: 1.5}", "f:3: tiers[0].rank: '1.5' is not a whole number; write a whole number from 0 up to 1000"),
        (f"{{name: fast, rank: {10**20}}}", f"f:3: tiers[0].rank: {10**20} is too high; write a whole number from 0 up to 1000"),
        (f"{{{FAST}, ttft: 0}}", "f:3: tiers[0].ttft: 0 is too low; write a number above 0 up to 86400"),
        (f"{{{FAST}, ttft: .nan}}", "f:3: tiers[0].ttft: '.nan' is not a number; write a number above 0 up to 86400"),
        (f"{{{FAST}, queue: .inf}}", "f:3: tiers[0].queue: '.inf' is not a number; write a number above 0"),
        (f"{{{FAST}, queue: 1e400}}", "f:3: tiers[0].queue: 1e400 is too high; write a number above 0 up to 86400"),
        (f"{{{FAST}, share: 1.5}}", "f:3: tiers[0].share: 1.5 is too high; write a number from 0 up to 1"),
        (f"{{{FAST}, share: -0.1}}", "f:3: tiers[0].share: -0.1 is too low; write a number from 0 up to 1"),
        (f"{{{FAST}, cold: -1}}", "f:3: tiers[0].cold: -1 is too low; write a number from 0 up to 86400"),
        # which one serves requests that name none
        (f"{{{FAST}, default: true}}, {{{SLOW}, default: true}}", "f:3: tiers[1].default: 'slow' is the default beside 'fast'; keep one default"),
        (f"{{{FAST}, default: true, access: granted}}, {{{SLOW}}}", "f:3: tiers[0].access: 'fast' serves requests that name no tier, and not every project may use it; write open, or default: true at a tier that is"),
        (f"{{name: default, rank: 0, access: granted}}, {{{SLOW}}}", "f:3: tiers[0].access: 'default' serves requests that name no tier"),
        (f"{{{FAST}, access: granted}}", "f:3: tiers: no tier is open, so that nothing serves requests which name none; set access: open at one of them"),
        # waits against objectives and each other
        (f"{{{FAST}, ttft: 3, firstByte: 2.5}}", "f:3: tiers[0].ttft: ttft (3 s) is not within firstByte (2.5 s); lower ttft or raise firstByte"),
        (f"{{{FAST}, tpot: 30, idle: 20}}", "f:3: tiers[0].tpot: tpot (30 s) is not within idle (20 s); lower tpot or raise idle"),
        (f"{{{FAST}, tpot: 300}}", "f:3: tiers[0].tpot: tpot (300 s) is not within idle (120 s); lower tpot or raise idle"),
        (f"{{{FAST}, firstByte: 20, total: 10, idle: 5}}", "f:3: tiers[0].firstByte: firstByte (20 s) is not within total (10 s); lower firstByte or raise total: total bounds"),
        (f"{{{FAST}, total: 301, idle: 302}}", "f:3: tiers[0].idle: idle (302 s) is not within total (301 s)"),
        (f"{{{FAST}, queue: 3601}}", "f:3: tiers[0].queue: queue (3601 s) is not within total (3600 s); lower queue or raise total: total bounds the whole request"),
        (f"{{{FAST}, firstByte: 2}}", "f:3: tiers[0].firstByte: timeouts.connect (2 s) is not below firstByte (2 s); raise firstByte: connecting is a part of it"),
        # between tiers
        (f"{{{SLOW}, ttft: 1}}, {{{FAST}, ttft: 2}}", "f:3: tiers[0].ttft: ttft (1 s) is shorter than that of 'fast' (2 s), which goes first; raise it, or change their ranks"),
        (f"{{{FAST}, tpot: 0.1}}, {{{SLOW}, tpot: 0.05}}", "f:3: tiers[1].tpot: tpot (0.05 s) is shorter than that of 'fast' (0.1 s), which goes first"),
        (f"{{{FAST}, share: 0.6}}, {{{SLOW}, share: 0.5}}", "f:3: tiers[1].share: the minimum shares add up to 1.1; lower them to 1 together"),
        (f"{{{FAST}}}, {{{SLOW}, ttft: 3, shed: downgrade}}", "f:3: tiers[1].shed: no tier is below it to be downgraded to; write hold or shed"),
        (f"{{{FAST}, ttft: 3, shed: downgrade}}, {{name: slow, rank: 0}}", "f:3: tiers[0].shed: no tier is below it to be downgraded to; write hold or shed"),
        (f"{{{FAST}, shed: downgrade}}, {{{SLOW}}}", "f:3: tiers[0].shed: downgrade without ttft has no effect; set ttft, the objective that would be missed"),
        (f"{{{FAST}, ttft: 3, shed: downgrade}}, {{{SLOW}, multiplier: '1.5'}}", "f:3: tiers[1].multiplier: 1.5 is more than 'fast' costs, which is downgraded to it; write at most 1, or raise that one"),
        # prices
        (f"{{{FAST}, multiplier: -1}}", "f:3: tiers[0].multiplier: '-1' is negative; write a multiplier of 0 or more"),
        (f"{{{FAST}, multiplier: 1.5}}", 'f:3: tiers[0].multiplier: 1.5 is a floating-point number to YAML, which cannot hold most decimal multipliers exactly; write it in quotes: "1.5"'),
        (f"{{{FAST}, multiplier: 99999}}", "f:3: tiers[0].multiplier: '99999' is not a multiplier; write a decimal string such as \"0.15\" (up to 12 decimals) or a whole number, 9999 at most"),
        (f"{{{FAST}, multiplier: NaN}}", "f:3: tiers[0].multiplier: 'NaN' is not a multiplier"),
        (f"{{{FAST}, multiplier: '1e1'}}", "f:3: tiers[0].multiplier: '1e1' is not a multiplier; write a decimal string"),
    ],
)  # fmt: skip
def test_a_contradiction_is_the_only_fault_and_says_its_place(tiers: str, fault: str) -> None:
    """gateway-api-inference-extension#2262."""
    (only,) = said(tiers)
    assert only.startswith(fault)


def test_each_tier_has_a_queue_of_its_own_so_there_are_not_many() -> None:
    (only,) = said(", ".join(f"{{name: t{rank}, rank: {rank}}}" for rank in range(33)))
    assert only == "f:3: tiers: 33 tiers are too many; keep at most 32"


def test_what_is_faulty_itself_is_not_blamed_again() -> None:
    (only,) = said(f"{{{FAST}, ttft: x, shed: downgrade}}, {{{SLOW}}}")
    assert "tiers[0].ttft: 'x' is not a number" in only
    (only,) = said(f"{{{FAST}, ttft: 90, queue: x}}")
    assert "tiers[0].queue: 'x' is not a number" in only


@pytest.mark.parametrize(
    "tiers",
    [
        "",
        f"{{{FAST}}}",
        f"{{{FAST}, ttft: 2, queue: 2, shed: downgrade, multiplier: '2'}}, {{{SLOW}, multiplier: 2}}",
        f"{{{FAST}, ttft: 3, queue: 60, shed: shed}}",  # who had an engine before, or takes longer by itself, may wait
        f"{{{FAST}, shed: shed, default: true}}, {{name: default, rank: 1, access: granted, multiplier: 0}}",
        f"{{{FAST}, share: 0.7}}, {{{SLOW}, share: 0.2}}, {{name: c, rank: 9, share: 0.1}}",
        f"{{{FAST}, ttft: 3}}, {{name: slow, rank: 0, ttft: 1, multiplier: 2}}",
        f"{{{FAST}, ttft: 2}}, {{{SLOW}}}, {{name: c, rank: 9, ttft: 2, cold: 86400, idle: 3600, firstByte: 3600}}",
    ],
)
def test_sound_tables_pass(tiers: str) -> None:
    assert said(tiers) == []


def test_a_long_first_byte_in_general_is_not_a_tiers_fault() -> None:
    faults = said(f"{{{FAST}}}", "timeouts: {firstByte: 5000}")
    assert all("tiers" not in fault for fault in faults)
