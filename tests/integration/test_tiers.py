"""Tiers of service as tenants, engines and the ledger see them. The router's part in it is played by the test: it says
in which tier a request is served, or why it is not."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import httpx
import msgspec
import pytest
from openai import RateLimitError

from forebay.metering import UsageQuery
from forebay.platform.tenancy.principal import Scope
from forebay.router import Ask, Placed, Refused, Result, Router, Why
from tests.doubles.engine.faults import Fault, Kind
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, SCOPES, Door
from tests.integration.observed import stream
from tests.processes import front_door
from tests.stores import state_directory

TIERS = [
    {"name": "fast", "rank": 0, "access": "granted", "multiplier": "2.5", "queue": 7, "idle": 0.3},
    {"name": "standard", "rank": 3, "default": True},
    {"name": "batch", "rank": 8, "multiplier": "0.123456789012", "queue": 600, "firstByte": 0.3},
]
RANKS = {"fast": 0, "standard": 3, "batch": 8}
Steer = Callable[[Ask], Result | str]


class Steered:
    """The door's router, but that the test says in which tier a request is served, or what is answered instead."""

    def __init__(self, router: Router, steer: Steer) -> None:
        self._router = router
        self._steer = steer
        self.asks: list[Ask] = []

    async def place(self, ask: Ask) -> Result:
        self.asks.append(ask)
        answer = self._steer(ask)
        if not isinstance(answer, str):
            return answer
        placed = await self._router.place(ask)
        return msgspec.structs.replace(placed, tier=answer) if isinstance(placed, Placed) else placed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router, name)


@contextmanager
def steered(door: Door, steer: Steer = lambda ask: ask.tier) -> Iterator[Steered]:
    relay = door.service.inferences._relay
    before = relay._means.router
    relay._means.router = steered = Steered(before, steer)
    yield steered
    relay._means.router = before


async def grant(door: Door, *tiers: str) -> str:
    """A key of a project with these tiers."""
    return await door.new_key(tiers=tiers)


async def chat(door: Door, key: str, **body: Any) -> httpx.Response:
    return await door.http.post(
        "/v1/chat/completions",
        json={"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **body},
        headers={"authorization": f"Bearer {key}"},
    )


def chunks(answer: httpx.Response) -> list[dict[str, Any]]:
    frames = [frame for frame in answer.text.split("\n\n") if frame and not frame.startswith(":")]
    assert frames[-1] == "data: [DONE]"
    return [msgspec.json.decode(frame.removeprefix("data: ")) for frame in frames[:-1]]


def priorities(engine: EngineDouble) -> list[int | None]:
    return [msgspec.json.decode(one.body).get("priority") for one in engine.requests if one.path.startswith("/v1/chat")]


async def test_a_granted_tier_is_echoed_prioritised_and_billed(open_door: OpenDoor) -> None:
    engine = EngineDouble(priority_scheduling=True)
    async with engine, open_door(engine, tiers=TIERS, endpoint={"priorityScheduling": True}) as door:
        key = await grant(door, "fast", "batch")
        with steered(door) as heard:
            for tier in ("fast", "batch"):
                whole = await chat(door, key, service_tier=tier)
                assert whole.json()["service_tier"] == tier
                assert whole.headers["x-forebay-tier"] == tier
                streamed = await chat(door, key, service_tier=tier, stream=True, stream_options={"include_usage": True})
                assert {chunk["service_tier"] for chunk in chunks(streamed)} == {tier}
        assert [ask.tier for ask in heard.asks] == ["fast", "fast", "batch", "batch"]
        assert [ask.patience_s for ask in heard.asks] == [7, 7, 600, 600]
        records = await door.records(4)
        assert {ask.tenant for ask in heard.asks} == {record["tenant_id"] for record in records}
        assert [(r["tier_requested"], r["tier_used"], r["price_multiplier"]) for r in records] == 2 * [
            ("fast", "fast", Decimal("2.5"))
        ] + 2 * [("batch", "batch", Decimal("0.123456789012"))]
        assert priorities(engine) == [0, 0, 8, 8]


async def test_who_asks_for_none_or_for_what_it_may_not_use_gets_the_default(open_door: OpenDoor) -> None:
    engine = EngineDouble(priority_scheduling=True)
    async with engine, open_door(engine, tiers=TIERS, endpoint={"priorityScheduling": True}) as door:
        with steered(door):
            silent = await door.chat(max_tokens=2)
            assert silent.json()["service_tier"] is None  # as the engine says it: nothing was asked
            for asked in ("auto", "default", "fast", "ultrafast"):
                answer = await door.chat(max_tokens=2, service_tier=asked)
                assert answer.json()["service_tier"] == "standard"
                (chunk, *_) = await stream(door, max_tokens=2, service_tier=asked)
                assert chunk["service_tier"] == "standard"
            refused = await door.chat(service_tier="standrad")
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], error["param"]) == (400, "invalid_value", "service_tier")
            assert error["message"].endswith("is not one of: auto, standard, batch. Did you mean 'standard'?")
        records = await door.records(9)
        assert {(r["tier_used"], r["price_multiplier"]) for r in records} == {("standard", Decimal(1))}
        assert [r["tier_requested"] for r in records[:2]] == ["auto", "auto"]
        assert set(priorities(engine)) == {3}


async def test_an_engine_without_priorities_is_told_none(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine, tiers=TIERS) as door:
        with steered(door):
            assert (await chat(door, await grant(door, "batch"), service_tier="batch")).status_code == 200
        assert priorities(engine) == [None]


async def test_a_downgrade_is_echoed_and_billed_as_what_it_became(open_door: OpenDoor) -> None:
    engine = EngineDouble(priority_scheduling=True)
    async with engine, open_door(engine, tiers=TIERS, endpoint={"priorityScheduling": True}) as door:
        key = await grant(door, "fast", "batch")
        with steered(door, lambda _: "batch"):
            whole = await chat(door, key, service_tier="fast")
            assert (whole.json()["service_tier"], whole.headers["x-forebay-tier"]) == ("batch", "batch")
            streamed = await chat(door, key, service_tier="fast", stream=True)
            assert {chunk["service_tier"] for chunk in chunks(streamed)} == {"batch"}
        records = await door.records(2)
        multiplier = Decimal("0.123456789012")
        assert [(r["tier_requested"], r["tier_used"], r["price_multiplier"]) for r in records] == 2 * [
            ("fast", "batch", multiplier)
        ]
        assert priorities(engine) == [8, 8]
        (line,) = await door.service.ledger.usage(
            UsageQuery(start=0, end=records[-1]["ended_at"].timestamp() + 1, group_by=("tier",))
        )
        assert line.group == {"tier": "batch"}
        used = line.used
        plain = used.input_uncached * Decimal("0.5") + used.cache_read * Decimal("0.1") + used.output * Decimal("1.5")
        assert line.exact == {"USD": (plain + used.cache_write * Decimal("0.5")) * multiplier / 1_000_000}


async def test_each_attempt_is_billed_in_the_tier_it_was_placed_in(open_door: OpenDoor) -> None:
    """Downgraded at its second attempt: the first, which failed, is recorded as what it was."""
    fault = Fault(kind="status", status=500, path="/v1/chat")
    tiers = iter(["fast", "standard"])
    one, two = EngineDouble(faults=(fault,)), EngineDouble(faults=(fault,))
    async with one, two, open_door(one, two, tiers=TIERS) as door:
        with steered(door, lambda _: next(tiers, None)):
            assert (await chat(door, await grant(door, "fast"), service_tier="fast")).status_code == 503
        records = await door.records(2)
        assert [(r["tier_used"], r["price_multiplier"], r["billable_output"]) for r in records] == [
            ("fast", Decimal("2.5"), 0), ("standard", Decimal(1), 0)
        ]  # fmt: skip


async def test_a_tier_that_is_granted_or_taken_away_is_so_within_a_second(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine, tiers=TIERS) as door:
        (tenant,) = await door.service.tenancy.tenants()
        (project,) = await door.service.tenancy.projects(tenant.id)
        with steered(door):
            for tiers, served in ((["fast"], "fast"), (None, "standard"), (["fast", "standard"], "fast")):
                await door.service.tenancy.set_tiers(project.id, tiers)

                async def is_served(served: str = served) -> bool:
                    answer = await door.chat(max_tokens=1, service_tier="fast")
                    return bool(answer.json()["service_tier"] == served)

                await eventually(is_served, 1.0)


@pytest.mark.parametrize("why", Why)
async def test_a_refusal_says_why_in_which_tier_and_when_to_come_back(open_door: OpenDoor, why: Why) -> None:
    async with EngineDouble() as engine, open_door(engine, tiers=TIERS) as door:
        with steered(door, lambda ask: Refused(why, 12.3456, ask.tier)):
            for streamed in (False, True):
                answer = await door.chat(service_tier="batch", stream=streamed)
                error = answer.json()["error"]
                assert (answer.status_code, error["code"], error["type"]) == (
                    429, "rate_limit_exceeded", "rate_limit_error"
                )  # fmt: skip
                assert error["metadata"] == {"reason": why, "tier": "batch", "retry_after_s": 12.346}
                assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("12", "12346")
            with pytest.raises(RateLimitError):
                await door.openai.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hello"}])
        assert priorities(engine) == []
        assert await door.ledger() == []


async def test_without_an_endpoint_it_is_a_503_that_names_the_tier(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine, tiers=TIERS) as door:
        with steered(door, lambda _: None):
            answer = await door.chat(service_tier="batch")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, "no_endpoint")
        assert error["metadata"] == {"reason": "no_endpoint", "tier": "batch", "retry_after_s": 2.0}
        assert answer.headers["retry-after-ms"] == "2000"


@pytest.mark.parametrize(("kind", "impatient"), [("hang_before_headers", "batch"), ("hang", "fast")])
async def test_each_tier_has_its_own_patience_with_engines(open_door: OpenDoor, kind: Kind, impatient: str) -> None:
    """A first token that takes long is too late for `batch`, a pause for `fast`, neither for the default.

    litellm#9551, #38358, #30836."""
    fault = Fault(kind=kind, path="/v1/chat", after=3, seconds=1.0)
    async with EngineDouble(Settings(faults=(fault,))) as engine, open_door(engine, tiers=TIERS) as door:
        key = await grant(door, "fast", "standard", "batch")
        with steered(door):
            answers = await asyncio.gather(
                *(chat(door, key, service_tier=tier, stream=True, max_tokens=6) for tier in RANKS)
            )
        for tier, answer in zip(RANKS, answers, strict=True):
            assert ('"code":"engine_timeout"' in answer.text) is (tier == impatient), tier
        ends = {record["tier_used"]: record["terminated_by"] for record in await door.records(3)}
        assert ends == {tier: "deadline" if tier == impatient else "engine" for tier in RANKS}


async def test_a_tier_bounds_a_whole_attempt(open_door: OpenDoor) -> None:
    tiers = [{"name": "brief", "rank": 0, "total": 0.4}, {"name": "patient", "rank": 1}]
    settings = Settings(token_seconds=0.05, answer_tokens=None)
    async with EngineDouble(settings) as engine, open_door(engine, tiers=tiers) as door:
        with steered(door):
            cut, whole = await asyncio.gather(
                *(door.chat(stream=True, max_tokens=30, service_tier=tier) for tier in ("brief", "patient"))
            )
        assert chunks(cut)[0]["service_tier"] == "brief"  # it had begun
        assert chunks(cut)[-1]["error"]["code"] == "engine_timeout"
        assert chunks(whole)[-1]["choices"][0]["finish_reason"] == "length"
        ends = {record["tier_used"]: record["terminated_by"] for record in await door.records(2)}
        assert ends == {"brief": "deadline", "patient": "engine"}


async def counted(door: Door, *labels: str) -> float:
    lines = (await door.http.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if all(label in line for label in labels))


async def test_operators_see_in_each_tier_whether_its_objectives_are_met(open_door: OpenDoor) -> None:
    tiers = [
        {"name": "tight", "rank": 0, "ttft": 0.000001, "tpot": 0.000001},
        {"name": "easy", "rank": 1, "ttft": 60, "tpot": 60},
        {"name": "none", "rank": 2},
    ]
    async with EngineDouble(Settings(token_seconds=0.01)) as engine, open_door(engine, tiers=tiers) as door:
        with steered(door):
            for tier in ("tight", "easy", "none"):
                await stream(door, max_tokens=4, service_tier=tier)
                await door.chat(max_tokens=4, service_tier=tier)  # tells of no first token
        for tier, met in (("tight", "no"), ("easy", "yes")):
            for objective in ("ttft", "tpot"):
                labels = (f'tier="{tier}"', f'objective="{objective}"')
                assert await counted(door, "forebay_objectives_total{", *labels, f'met="{met}"') == 1
                assert await counted(door, "forebay_objectives_total{", *labels) == 1
        assert await counted(door, "forebay_objectives_total{", 'tier="none"') == 0
        assert await counted(door, "forebay_first_token_seconds_count{", 'tier="none"') == 1


async def test_workers_and_their_router_know_the_same_tiers(database: str, valkey: str) -> None:
    engine = EngineDouble(priority_scheduling=True)
    with state_directory() as state:
        async with engine, front_door(
            state, [engine.url], model=MODEL, postgres=database, valkey=valkey, server={"workers": 2}, tiers=TIERS,
            timeouts={"connect": 0.2},
            endpoint={"priorityScheduling": True},
        ) as door:  # fmt: skip
            for tier in ("batch", "fast", "standard", "batch", "auto"):
                async with httpx.AsyncClient(base_url=door.url) as http:  # a connection of its own, for any worker
                    answer = await http.post(
                        "/v1/chat/completions",
                        json={"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "service_tier": tier},
                        headers={"authorization": f"Bearer {door.key}"},
                    )
                served = "batch" if tier == "batch" else "standard"
                assert (answer.json()["service_tier"], answer.headers["x-forebay-tier"]) == (served, served)
        assert priorities(engine) == [8, 3, 3, 8, 3]


async def test_only_keys_for_debugging_are_told_the_tier_in_a_header(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine, tiers=TIERS) as door:
        key = await door.new_key(tuple(scope for scope in SCOPES if scope is not Scope.DEBUG))
        with steered(door):
            answer = await chat(door, key, service_tier="batch")
        assert answer.json()["service_tier"] == "batch"
        assert "x-forebay-tier" not in answer.headers
