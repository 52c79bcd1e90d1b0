"""Which tier a request gets, and what that means to it."""

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.platform.config.load import examine
from forebay.platform.config.model import Config
from forebay.platform.config.show import as_yaml
from forebay.platform.errors import ApiError
from forebay.platform.relay.upstream_errors import refused
from forebay.platform.tiers import KNOWN, TierTable, table_of, tiers_of
from forebay.router import DEFAULT, Refused, Shed, Why

TIERS = """
- {name: fast, rank: 0, access: granted, ttft: 1, queue: 5, cold: 30, multiplier: "2.5", firstByte: 20, total: 600, shed: downgrade}
- {name: standard, rank: 1, ttft: 4, default: true, share: 0.2}
- {name: batch, rank: 5, queue: 600, shed: shed, multiplier: "0.5", idle: 300}
- {name: free, rank: 9, access: granted, multiplier: 0, shed: shed}
"""  # noqa: E501


def configured(tiers: str = TIERS) -> Config:
    config, faults = examine(f"apiVersion: forebay.dev/v1\ntiers:\n{tiers}", "f", {})
    assert config is not None, faults
    return config


def table(tiers: str = TIERS) -> TierTable:
    return table_of(configured(tiers))


@pytest.mark.parametrize(
    ("granted", "asked", "served"),
    [
        (None, None, "standard"),
        (None, "auto", "standard"),
        (None, "default", "standard"),  # OpenAI's name; no tier is called so here
        (None, "flex", "standard"),
        (None, "ultrafast", "standard"),
        (None, "standard", "standard"),
        (None, "batch", "batch"),
        (None, "fast", "standard"),  # declared, and not for this project: never more dearly than the default
        (["fast"], "fast", "fast"),
        (["fast"], None, "standard"),  # what is granted must be asked for
        (["fast"], "batch", "standard"),  # a list is the whole of it
        (["fast", "batch"], "batch", "batch"),
        (["standard", "batch"], "auto", "standard"),
        ([], "batch", "standard"),
        (["gone"], "auto", "standard"),  # it was declared once
        # Who is allowed only what is below the default gets no more by not asking.
        (["free"], None, "free"),
        (["free"], "priority", "free"),
        (["free"], "standard", "free"),
        (["free"], "fast", "free"),
        (["free", "batch"], "auto", "batch"),
        (["free", "gone"], "auto", "free"),
    ],
)
def test_the_tier_that_serves(granted: list[str] | None, asked: str | None, served: str) -> None:
    assert table().choose(asked, None if granted is None else frozenset(granted)) == served


def test_a_name_that_nobody_knows_is_refused_with_those_that_there_are_for_this_project() -> None:
    for granted, names in ((None, "auto, standard, batch"), (["fast"], "auto, standard, fast")):
        for asked, hint in (("bach" if granted is None else "fats", True), ("gold!", False), ("", False)):
            with pytest.raises(ApiError) as caught:
                table().choose(asked, granted)
            error = caught.value
            assert (error.status, error.code, error.param) == (400, "invalid_value", "service_tier")
            assert f"is not one of: {names}." in error.message
            assert ("Did you mean" in error.message) is hint
            assert "free" not in error.message


@given(
    st.none() | st.sampled_from([*KNOWN, "fast", "standard", "batch", "free"]),
    st.none() | st.frozensets(st.sampled_from(["fast", "standard", "batch", "free", "gone"])),
)
def test_nobody_pays_more_than_the_default_for_what_was_not_asked_and_granted(
    asked: str | None, granted: frozenset[str] | None
) -> None:
    terms = table()
    served = terms[terms.choose(asked, granted)]
    if served.multiplier > terms.default.multiplier:
        assert asked == served.name
        assert granted is not None
        assert served.name in granted


def test_without_tiers_there_is_one_which_all_names_of_openai_mean() -> None:
    config = msgspec.convert({"timeouts": {"queue": 7.0}}, Config)
    found = table_of(config)
    assert {found.choose(asked, granted) for asked in (None, *KNOWN) for granted in (None, [], ["fast"])} == {DEFAULT}
    assert found.default.timeouts == config.timeouts
    assert found.default.multiplier == 1
    with pytest.raises(ApiError):
        found.choose("gold", None)
    (only,) = tiers_of(config)
    assert (only.name, only.rank, only.queue_s, only.cold_s, only.shed) == (DEFAULT, 0, 7.0, 0.0, Shed.HOLD)


def test_the_default_is_that_which_says_so_else_the_one_called_default_else_the_first_open_one() -> None:
    assert table("- {name: default, rank: 0}\n- {name: b, rank: 1, default: true}").default.name == "b"
    assert table("- {name: b, rank: 0}\n- {name: default, rank: 1}").default.name == "default"
    assert table("- {name: a, rank: 0, access: granted}\n- {name: c, rank: 9}\n- {name: b, rank: 1}").default.rank == 9
    assert tiers_of(configured("- {name: a, rank: 3}\n- {name: b, rank: 1}")).default.name == "a"


def test_a_tiers_own_waits_take_the_place_of_the_general_ones() -> None:
    fast, batch = table()["fast"].timeouts, table()["batch"].timeouts
    general = Config().timeouts
    assert (fast.queue, fast.first_byte, fast.idle, fast.total) == (5, 20, general.idle, 600)
    assert (batch.queue, batch.first_byte, batch.idle, batch.total) == (600, general.first_byte, 300, general.total)
    assert table()["standard"].timeouts == general
    assert table()["unheard of"].name == "standard"


def test_the_router_is_told_what_each_tier_is_promised() -> None:
    fast, standard, batch, free = tiers_of(configured())
    assert (fast.name, fast.ttft_s, fast.queue_s, fast.cold_s, fast.shed) == ("fast", 1.0, 5.0, 30.0, Shed.DOWNGRADE)
    assert (standard.ttft_s, standard.queue_s, standard.share, standard.shed) == (4.0, 60.0, 0.2, Shed.HOLD)
    assert (batch.rank, batch.queue_s, batch.shed) == (5, 600.0, Shed.SHED)
    assert free.name == "free"
    assert tiers_of(configured()).default == standard


def test_a_table_reads_back_as_it_is_shown() -> None:
    config = configured()
    assert examine(as_yaml(config), "f", {}) == (config, [])


def test_multipliers_stay_exact() -> None:
    assert table('- {name: a, rank: 0, multiplier: "1.000000000001"}').default.multiplier == Decimal("1.000000000001")


@pytest.mark.parametrize("why", Why)
@pytest.mark.parametrize(
    ("retry_s", "header", "milliseconds", "told"),
    [(0.0, "1", "1000", 1.0), (2.34567, "2", "2346", 2.346), (250.0, "60", "60000", 250.0),
     (1e9, "60", "60000", 3600.0), (float("inf"), "60", "60000", 3600.0), (float("nan"), "1", "1000", 1.0)],
)  # fmt: skip
def test_a_refusal_says_why_in_which_tier_and_when_to_come_back(
    why: Why, retry_s: float, header: str, milliseconds: str, told: float
) -> None:
    error = refused(Refused(why, retry_s, "batch"))
    assert (error.status, error.headers) == (429, {"retry-after": header, "retry-after-ms": milliseconds})
    body: Any = msgspec.json.decode(error.body())["error"]
    assert (body["code"], body["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert body["metadata"] == {"reason": why, "tier": "batch", "retry_after_s": told}
