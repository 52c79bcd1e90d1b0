"""Engines that are found in Kubernetes, by the real client over a double of the API."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay.platform.config.engines import Kubernetes
from forebay.platform.finding import rules_of
from forebay.platform.tasks import end
from forebay.router import EndpointSpec
from forebay.router.discovery import Cluster, ClusterError, Discovery, connect
from tests.doubles.engine.server import EngineDouble
from tests.doubles.kubernetes import KubernetesDouble, Object, pod, slice_
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door
from tests.integration.observed import SLOW, unbooked

RULES = rules_of(Kubernetes(service="engines"), "m")
QUICK = (0.02, 0.2)


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubernetesDouble]:
    async with KubernetesDouble() as double:
        monkeypatch.setenv("KUBECONFIG", str(double.kubeconfig(tmp_path / "kubeconfig")))
        yield double


class Heard:
    """What a discovery told."""

    def __init__(self) -> None:
        self.told: list[tuple[EndpointSpec, ...]] = []

    @property
    def names(self) -> list[str] | None:
        """Of those that are sent requests, as told last."""
        return [spec.name for spec in self.told[-1] if not spec.draining] if self.told else None


@asynccontextmanager
async def discovering(heard: Heard, *, service: bool = True, selector: str = "") -> AsyncIterator[Discovery]:
    cluster: Cluster = await asyncio.to_thread(connect)
    slices = cluster.slices("models", "engines") if service else None
    discovery = Discovery("main", RULES, cluster.pods("models", selector), slices, heard.told.append, pauses=QUICK)
    running = asyncio.create_task(discovery.run())
    try:
        yield discovery
    finally:
        await end(running)
        cluster.close()


async def populate(api: KubernetesDouble, *pods: Object, **of_slice: Any) -> None:
    """One slice has all of them."""
    await api.set("pods", *pods)
    await api.set("slices", slice_("engines-x", {one["metadata"]["name"]: one for one in pods}, **of_slice))


async def test_it_follows_pods_as_they_come_and_go(api: KubernetesDouble) -> None:
    heard = Heard()
    await populate(api, pod("a"), pod("b", "10.0.0.2"))
    async with discovering(heard) as discovery:
        await eventually(lambda: heard.names == ["a", "b"])
        assert discovery.first.is_set()
        await populate(api, pod("a"), pod("b", "10.0.0.2"), pod("c", "10.0.0.3"))
        await eventually(lambda: heard.names == ["a", "b", "c"])
        await api.set("pods", pod("b", "10.0.0.2", deleted=True))  # its slice still calls it ready
        await eventually(lambda: heard.names == ["a", "c"])
        assert [spec.draining for spec in heard.told[-1]] == ["", "its pod is terminating", ""]
        await api.remove("pods", "b")
        await eventually(lambda: [spec.name for spec in heard.told[-1]] == ["a", "c"])
        report = discovery.report()
        assert (report.synced, report.away, report.endpoints) == (True, "", 2)
        assert report.left_out == {"b": "is in the service, and its pod is not known"}
        assert discovery.lists == 2  # all the rest was watched


async def test_pages_of_a_list_are_asked_for_one_after_the_other(api: KubernetesDouble) -> None:
    heard = Heard()
    api.page = 3
    await populate(api, *(pod(f"e-{n}", f"10.0.0.{n}") for n in range(8)))
    async with discovering(heard):
        await eventually(lambda: heard.names == [f"e-{n}" for n in range(8)])
    assert [query.get("continue") for kind, query in api.asked if kind == "pods" and "watch" not in query] == [
        None, "3", "6",
    ]  # fmt: skip


async def test_a_selector_finds_pods_without_a_service(api: KubernetesDouble) -> None:
    heard = Heard()
    await api.set("pods", pod("a"), pod("web", labels={"app": "web"}))
    async with discovering(heard, service=False, selector="app=engine"):
        await eventually(lambda: heard.names == ["a"])
        await api.set("pods", pod("a", ready=False))
        await eventually(lambda: heard.names == [])
    assert {kind for kind, _ in api.asked} == {"pods"}


async def test_while_the_api_is_away_the_engines_known_last_stay(api: KubernetesDouble) -> None:
    heard = Heard()
    await populate(api, pod("a"), pod("b", "10.0.0.2"))
    async with discovering(heard) as discovery:
        await eventually(lambda: heard.names == ["a", "b"])
        await api.leave()
        await eventually(lambda: discovery.report().away)
        assert discovery.report().synced
        await asyncio.sleep(0.3)
        assert discovery.report().away_s > 0.2
        assert heard.names == ["a", "b"]
        await api.forget("pods", "a")  # while nobody hears it
        await api.listen()
        await eventually(lambda: heard.names == ["b"])
        await eventually(lambda: not discovery.report().away)
        assert discovery.report().away_s == 0.0


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_one_that_refuses_is_asked_again_with_pauses_and_what_it_said_is_shown(
    api: KubernetesDouble, status: int
) -> None:
    heard = Heard()
    api.refuse = status
    async with discovering(heard) as discovery:
        await eventually(lambda: f"answered {status}" in discovery.report().away)
        assert not discovery.report().synced
        assert not heard.told
        await asyncio.sleep(0.5)
        assert len(api.asked) < 2 * 15  # of two kinds, with pauses that grow
        api.refuse = 0
        await populate(api, pod("a"))
        await eventually(lambda: heard.names == ["a"])


async def test_a_version_that_is_too_old_costs_a_list(api: KubernetesDouble) -> None:
    heard = Heard()
    await populate(api, pod("a"))
    async with discovering(heard) as discovery:
        await eventually(lambda: heard.names == ["a"])
        api.expired = 2  # one watch of each kind
        await api.cut()
        await eventually(lambda: discovery.lists >= 4)
        await populate(api, pod("a"), pod("b", "10.0.0.2"))
        await eventually(lambda: heard.names == ["a", "b"])
        assert discovery.lists <= 5


async def test_a_watch_goes_on_from_a_bookmark(api: KubernetesDouble) -> None:
    heard = Heard()
    await populate(api, pod("a"))
    async with discovering(heard) as discovery:
        await eventually(lambda: heard.names == ["a"] and api.watching == 2)
        await api.bookmark()
        await asyncio.sleep(0.1)
        api.oldest = api.version  # what came before is forgotten
        await api.cut()
        await populate(api, pod("a"), pod("b", "10.0.0.2"))
        await eventually(lambda: heard.names == ["a", "b"])
        assert discovery.lists == 2


@pytest.mark.parametrize("garbage", [b"<html>\n", b'{"type":"ADDED","object":{}}\n', b"\xff\xfe\n", b"\n\n"])
async def test_nonsense_in_a_watch_takes_nothing_away(api: KubernetesDouble, garbage: bytes) -> None:
    heard = Heard()
    await populate(api, pod("a"))
    api.garbage = garbage
    async with discovering(heard) as discovery:
        await eventually(lambda: heard.names == ["a"])
        await asyncio.sleep(0.2)
        assert heard.names == ["a"]
        api.garbage = b""
        await populate(api, pod("a"), pod("b", "10.0.0.2"))
        await eventually(lambda: heard.names == ["a", "b"])
        await eventually(lambda: not discovery.report().away)


def followers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kubernetes ")]


async def test_an_end_leaves_no_thread_that_waits(api: KubernetesDouble) -> None:
    async with discovering(Heard()) as discovery:
        await eventually(lambda: api.watching == 2 and discovery.report().synced)
        assert len(followers()) == 2
    await eventually(lambda: not followers(), 2.0)
    api.refuse = 500
    async with discovering(Heard()) as discovery:
        await eventually(lambda: discovery.report().away)
    await eventually(lambda: not followers(), 2.0)


async def test_without_a_cluster_the_start_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(ClusterError, match="it is not known where the Kubernetes API is"):
        await asyncio.to_thread(connect)


async def test_without_the_client_the_start_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)
    with pytest.raises(ClusterError, match="pip install 'forebay\\[kubernetes\\]'"):
        connect()


# -- a whole front door


def engine_pod(name: str, engine: EngineDouble, **more: Any) -> Object:
    """The doubles share an address, so each has a port of its own, under one name."""
    port = int(engine.url.rpartition(":")[2])
    return pod(name, "127.0.0.1", ports={"openai": port}, **more)


POOLS = [{
    "name": "main",
    "discovery": {"kubernetes": {"namespace": "models", "selector": "app=engine", "port": "openai",
                                 "servedModel": MODEL}},
}]  # fmt: skip


async def answered_by(door: Door, count: int, **body: Any) -> set[str]:
    answers = [await door.chat(f"{n}", max_tokens=2, **body) for n in range(count)]
    assert {answer.status_code for answer in answers} == {200}
    return {answer.headers["x-forebay-endpoint"] for answer in answers}


async def test_a_front_door_serves_with_what_it_finds_and_no_request_pays_for_a_change(
    open_door: OpenDoor, api: KubernetesDouble
) -> None:
    async with EngineDouble(SLOW) as one, EngineDouble() as two:
        await api.set("pods", engine_pod("engine-a", one))
        async with open_door(pools=POOLS) as door:
            assert await answered_by(door, 2) == {"engine-a"}
            streaming = asyncio.create_task(door.chat("long", max_tokens=40, stream=True))
            await eventually(lambda: one.scheduler.in_flight)
            labels = {"app": "engine", "forebay.dev/accelerator": "h200"}
            await api.set("pods", engine_pod("engine-b", two, labels=labels))
            await api.set("pods", engine_pod("engine-a", one, deleted=True))
            await eventually(lambda: door.service.router.states("main")["engine-a"].draining)
            assert await answered_by(door, 6) == {"engine-b"}
            health = (await door.http.get("/health")).json()
            assert health["status"] == "ok"
            assert health["pools"]["main"] == {
                "engine-a": {"status": "up", "draining": "its pod is terminating", "drained": False},
                "engine-b": {"status": "up", "accelerator": "h200"},
            }
            await api.remove("pods", "engine-a")
            await eventually(lambda: set(door.service.router.states("main")) == {"engine-b"})
            answer = await streaming
            assert answer.text.endswith("data: [DONE]\n\n")
            assert '"error"' not in answer.text
            await api.leave()

            async def away() -> bool:
                return bool((await door.http.get("/health")).json()["discovery"]["main"]["away"])

            await eventually(away)
            assert await answered_by(door, 3) == {"engine-b"}
            shown = {
                sample.name: sample.value
                for family in text_string_to_metric_families((await door.http.get("/metrics")).text)
                for sample in family.samples if sample.name.startswith("forebay_discovery")
            }  # fmt: skip
            assert shown["forebay_discovery_up"] == 0.0
            await eventually(lambda: unbooked(door))


async def test_a_front_door_starts_while_the_api_is_away_and_listed_endpoints_serve(
    open_door: OpenDoor, api: KubernetesDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.platform.finding.FIRST_WITHIN_S", 0.3)
    async with EngineDouble() as listed, EngineDouble() as engine:
        pools = [{**POOLS[0], "endpoints": [{"url": listed.url, "name": "listed", "servedModel": MODEL}]}]
        api.refuse = 503
        async with open_door(pools=pools) as door:
            assert await answered_by(door, 2) == {"listed"}
            api.refuse = 0
            await api.set("pods", engine_pod("engine-a", engine), engine_pod("listed", engine))
            await eventually(lambda: "engine-a" in door.service.router.states("main"))
            assert await answered_by(door, 6) == {"listed", "engine-a"}
            assert set(door.service.router.states("main")) == {"listed", "engine-a"}
            assert door.service.pools[0].endpoints["listed"].spec.url == listed.url
