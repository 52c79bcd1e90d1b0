"""Real processes for tests and benchmarks: the front door, engines, anything run with `python -m`."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from forebay.platform.config.model import Config, Stores
from forebay.platform.local.probe import any_port
from forebay.platform.local.process import WRAPPER
from forebay.platform.tenancy.opened import opened
from forebay.platform.tenancy.principal import Scope

START_TIMEOUT_S = 60.0
_ROOT = Path(__file__).resolve().parent.parent


class Door(Struct):
    """A running front door, a project key for it, and what it took to start it (to start it once more)."""

    pid: int
    port: int
    key: str
    state: str
    process: asyncio.subprocess.Process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def python_process(*arguments: str, ready: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m …`, from when it prints `ready` until the block ends (SIGTERM, then SIGKILL), or this process does."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(WRAPPER), str(os.getpid())),
        sys.executable,
        "-m",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=None,
        cwd=_ROOT,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while ready not in (line := (await process.stdout.readline()).decode()):
                if not line:
                    raise RuntimeError(f"{' '.join(arguments)} ended before it was ready")
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(20.0):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


@asynccontextmanager
async def front_door(
    state: Path,
    engines: Sequence[str],
    *,
    model: str,
    postgres: str,
    valkey: str,
    port: int | None = None,
    key: str | None = None,
    endpoints: Sequence[dict[str, Any]] = (),
    tokenizer: str | None = None,
    **changes: Any,
) -> AsyncIterator[Door]:
    """`forebay serve` over `engines`. `changes` are further sections of its configuration, as in the file; `endpoints`
    are further members of each endpoint."""
    port = port or any_port()
    config = {
        "apiVersion": "forebay.dev/v1",
        "server": {"port": port, "drainTimeout": 5.0, **changes.pop("server", {})},
        "stores": {"postgres": postgres, "valkey": valkey, "stateDir": str(state), **changes.pop("stores", {})},
        "pools": [
            {
                "name": "main",
                "endpoints": [
                    {"url": url, "name": f"engine-{i}", **changes.get("endpoint", {}), **further}
                    for i, (url, further) in enumerate(zip(engines, endpoints or [{}] * len(engines), strict=True))
                ],
            }
        ],
        "models": [
            {
                "name": model,
                "pool": "main",
                **({"tokenizer": tokenizer} if tokenizer else {}),
                "aliases": ["alias"],
                "apis": ["chat", "completions", "embeddings"],
                "prices": [
                    {
                        "version": "v1",
                        "effectiveFrom": "2026-01-01T00:00:00Z",
                        "input": "0.5",
                        "cacheRead": "0.1",
                        "output": "1.5",
                    }
                ],
            }
        ],
        **{name: value for name, value in changes.items() if name != "endpoint"},
    }
    path = state / f"forebay-{port}.yaml"
    path.write_text(yaml.safe_dump(config))
    key = key or await make_key(state, postgres)
    async with python_process(
        "forebay.platform.cli", "serve", "--config", str(path), ready="Forebay serves"
    ) as process:
        yield Door(process.pid, port, key, str(state), process)


async def make_key(
    state: Path, postgres: str, scopes: Sequence[Scope] = (Scope.INFERENCE, Scope.USAGE_READ, Scope.DEBUG)
) -> str:
    """A key of a new tenant and project."""
    config = Config(stores=Stores(state_dir=str(state)))
    async with opened(config, postgres) as tenancy:
        tenant = await tenancy.create_tenant(f"tenant-{os.urandom(4).hex()}")
        project = await tenancy.create_project(tenant.id, "main")
        return (await tenancy.create_key(project.id, scopes=scopes)).secret
