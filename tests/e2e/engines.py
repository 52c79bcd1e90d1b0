"""Real vLLM engines for tests: the program's own provisioning and supervision, on free ports, with their own state."""

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psutil
from msgspec import structs

from forebay.platform.config.load import load_config
from forebay.platform.local import engines, probe, vllm, weights
from forebay.platform.local.paths import MODEL, Paths, paths
from forebay.platform.local.progress import Progress
from forebay.platform.local.supervisor import Supervisor
from tests.stores import state_directory

T = TypeVar("T")
FIRST_PORT = 19_101  # away from what `forebay up` uses


class Engine:
    """One running engine. `replica` is None when it is somebody else's (FOREBAY_VLLM_URL)."""

    model = MODEL

    def __init__(self, url: str, replica: vllm.Replica | None = None, supervisor: Supervisor | None = None) -> None:
        self.url = url
        self.replica = replica
        self._supervisor = supervisor

    def __repr__(self) -> str:
        return f"<Engine {self.url}>"

    @property
    def pid(self) -> int | None:
        """None while it is being started again, and for somebody else's."""
        return self._supervisor.pids.get(self.replica.name) if self._supervisor and self.replica else None

    def kill(self) -> None:
        """SIGKILL to the engine and its workers; its supervisor starts it again within a minute."""
        assert self.pid is not None
        process = psutil.Process(self.pid)
        for one in [*process.children(recursive=True), process]:
            one.kill()

    async def ready(self) -> bool:
        status, _ = await probe.get(f"{self.url}/health")
        return status == 200


@contextmanager
def state_with_engines() -> Iterator[Paths]:
    """A state directory of its own that borrows the installed engines and the converted model."""
    real = paths(load_config(None).stores.state_dir)
    asyncio.run(_prepare(real))
    with state_directory() as directory:
        (directory / "engines").symlink_to(real.engine.parent)
        (directory / "models").symlink_to(real.weights.parent)
        yield Paths(directory)


async def _prepare(where: Paths) -> None:
    await engines.build(where, Progress())
    await weights.convert(where, Progress())


class Loop:
    """An event loop in a thread that lasts as long as the engines: the kernel ends them when their thread ends."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engines", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], timeout: float = 900.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def running_engine(where: Paths, index: int, *further: str) -> Iterator[Engine]:
    """`further`: arguments of the engine's command line."""
    (port,) = probe.free_ports(FIRST_PORT + index, 1)
    replica = vllm.replica(where, index, port)
    part = vllm.part(where, replica, index=index, kv_cache_gib=1)
    part = structs.replace(part, argv=(*part.argv, *further))
    loop = Loop()
    supervisor = Supervisor(where.logs, Progress())
    try:
        loop.call(supervisor.start(part))
        yield Engine(replica.url, replica, supervisor)
    finally:
        loop.call(supervisor.stop())
        loop.close()


def borrowed() -> Engine | None:
    """An engine that already runs, so that tests can be repeated without its start of half a minute."""
    url = os.environ.get("FOREBAY_VLLM_URL")
    return Engine(url.rstrip("/")) if url else None
