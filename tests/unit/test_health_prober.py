"""Probes of engines over HTTP: what each answer says of them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from forebay.router.endpoints import Endpoint, EndpointSpec
from forebay.router.health import Card, Failed, Finding, Misfit, Well
from forebay.router.health_prober import Prober, probe
from tests.doubles.scripted import whole
from tests.eventually import eventually

Answers = Callable[[bytes], bytes]
GONE = "http://127.0.0.1:1"


@asynccontextmanager
async def serving(answers: Answers) -> AsyncIterator[str]:
    """An engine whose answer to a path is `answers(path)`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                writer.write(answers(head.split(b" ")[1]))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def spec(url: str, *, name: str = "a", engine: str = "vllm", model: str = "m") -> EndpointSpec:
    return EndpointSpec(name, url, engine, model, None, False)


def listing(body: bytes, *, status: str = "200 OK", health: str = "200 OK") -> Answers:
    return lambda path: whole(b"", status=health) if path == b"/health" else whole(body, status=status)


def cards(*found: object, status: str = "200 OK", health: str = "200 OK") -> Answers:
    return listing(msgspec.json.encode({"data": found}), status=status, health=health)


async def found(answers: Answers, *, proven: bool = False, engine: str = "vllm") -> Finding:
    async with serving(answers) as url:
        endpoint = Endpoint(spec(url, engine=engine), connect_timeout=1.0)
        try:
            return await probe(endpoint, proven=proven)
        finally:
            endpoint.client.close()


async def test_an_engine_that_serves_the_model() -> None:
    assert await found(cards({"id": "other"}, {"id": "m", "max_model_len": 4096})) == Card(4096, None)
    assert await found(cards({"id": "m"})) == Card(None, None)
    assert await found(cards({"id": "m", "parent": "base"})) == Card(None, "m")


async def test_a_proven_engine_is_asked_for_its_health_alone() -> None:
    assert await found(cards({"id": "other"}), proven=True) == Well()
    assert await found(cards({"id": "other"}), proven=True, engine="openai") == Misfit(
        "serves other, not 'm': set servedModel"
    )


@pytest.mark.parametrize(("answers", "reason"), [
    (cards(health="503 Busy"), "/health answered 503"),
    (cards(status="401 No"), "/v1/models answered 401"),
    (listing(b"<html>"), "/v1/models is not a model list: "),
    (listing(b'{"data":[{"id":"\xff"}]}'), "/v1/models is not a model list: "),
    (lambda path: b"SSH-2.0\r\n", "the engine's answer is not HTTP: "),
], ids=["unwell", "refused", "html", "not utf-8", "not http"])  # fmt: skip
async def test_one_that_is_not_well(answers: Answers, reason: str) -> None:
    finding = await found(answers)
    assert isinstance(finding, Failed)
    assert finding.reason.startswith(reason)
    assert not finding.at_once


async def test_one_that_serves_something_else_or_nothing() -> None:
    assert await found(cards({"id": "x"}, {"id": "y"})) == Misfit("serves x, y, not 'm': set servedModel")
    assert await found(cards()) == Misfit("serves no model, not 'm': set servedModel")


async def test_where_nobody_listens_it_is_gone_at_once() -> None:
    finding = await probe(Endpoint(spec(GONE), connect_timeout=1.0), proven=True)
    assert isinstance(finding, Failed)
    assert finding.at_once


async def test_ranks_behind_one_url_are_probed_once_and_all_hear_of_it() -> None:
    asked: Counter[bytes] = Counter()
    answers = cards({"id": "m"})

    def count(path: bytes) -> bytes:
        asked[path] += 1
        return answers(path)

    heard: list[tuple[str, str, Finding]] = []
    async with serving(count) as url:
        prober = Prober(
            {"main": [spec(url, name="a/0"), spec(url, name="a/1")], "gone": [spec(GONE, name="b")]},
            tell=lambda *told: heard.append(told),
            proven=lambda pool, endpoint: endpoint == "a/0",
            connect_timeout=1.0,
        )
        await prober.once()
        prober.close()
    assert asked == {b"/health": 1, b"/v1/models": 1}
    assert sorted((pool, name, type(finding)) for pool, name, finding in heard) == [
        ("gone", "b", Failed), ("main", "a/0", Card), ("main", "a/1", Card),
    ]  # fmt: skip


async def test_endpoints_that_come_are_probed_while_it_runs_and_those_that_went_are_not() -> None:
    heard: list[str] = []
    async with serving(cards({"id": "m"})) as url:
        prober = Prober(
            {"main": [spec(url, name="a/0")], "other": []},
            tell=lambda pool, name, finding: heard.append(f"{pool} {name} {type(finding).__name__}"),
            proven=lambda pool, endpoint: False,
            connect_timeout=1.0,
        )
        running = asyncio.create_task(prober.run())
        await eventually(lambda: heard == ["main a/0 Card"])
        prober.keep("other", [spec(GONE, name="b")])
        await eventually(lambda: heard[1:] == ["other b Failed"])
        prober.keep("other", [spec(url, name="c")])  # the same server as main's
        prober.keep("main", [])
        heard.clear()
        await prober.once()
        assert heard == ["other c Card"]
        prober.keep("other", [])
        heard.clear()
        await prober.once()
        assert not heard
        assert not running.done()
        running.cancel()
        await asyncio.wait((running,))
        prober.close()
