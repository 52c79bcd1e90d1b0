"""A front door inside the test's own event loop: real stores, real HTTP, engine doubles."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx
import msgspec
from openai import AsyncOpenAI
from sqlalchemy import text

from forebay.platform.config.model import Config
from forebay.platform.local.probe import any_port
from forebay.platform.server import listening
from forebay.platform.service import Service, running
from forebay.platform.tenancy.principal import Scope
from tests.eventually import eventually

MODEL = "smollm2-135m-instruct"
SCOPES = (Scope.INFERENCE, Scope.USAGE_READ, Scope.DEBUG)
PRICES = [
    {"version": "v1", "effectiveFrom": "2026-01-01T00:00:00Z", "input": "0.5", "cacheRead": "0.1", "output": "1.5"}
]


class Door:
    """A running front door and ways to look at it as a tenant and as an operator."""

    def __init__(self, service: Service, key: str, key_id: str) -> None:
        self.service = service
        self.key = key
        self.key_id = key_id
        self.url = f"http://127.0.0.1:{service.config.server.port}"
        self.http = httpx.AsyncClient(base_url=self.url, headers={"authorization": f"Bearer {key}"}, timeout=30.0)
        self.openai = AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=30.0)

    async def new_key(self, scopes: tuple[Scope, ...] = SCOPES, **project: Any) -> str:
        """A key of a tenant of its own."""
        tenancy = self.service.tenancy
        tenant = await tenancy.create_tenant(f"tenant-{os.urandom(4).hex()}")
        created = await tenancy.create_project(tenant.id, "main", **project)
        return (await tenancy.create_key(created.id, scopes=scopes)).secret

    async def chat(self, content: str = "hello", **body: Any) -> httpx.Response:
        return await self.http.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": [{"role": "user", "content": content}], **body}
        )

    async def ledger(self) -> list[dict[str, Any]]:
        """All usage records that have reached the ledger, oldest first."""
        async with self.service.engine.connect() as db:
            rows = (await db.execute(text("SELECT * FROM usage_records ORDER BY started_at, attempt"))).mappings()
            return [dict(row) for row in rows]

    async def records(self, count: int) -> list[dict[str, Any]]:
        """All usage records once there are `count` in the ledger; raises when there are fewer in time, or more."""

        async def enough() -> list[dict[str, Any]] | None:
            found = await self.ledger()
            return found if len(found) >= count else None

        found: list[dict[str, Any]] | None = await eventually(enough, 10.0, every=0.05)
        assert found is not None
        assert len(found) == count, found
        return found


class Engine(Protocol):
    """A double or a real one."""

    @property
    def url(self) -> str: ...


def config(state: Path, engines: Sequence[Engine], **changes: Any) -> Config:
    """A configuration over `engines`, as the file would say it. `endpoint` holds members of every endpoint, `endpoints`
    those of each."""
    endpoint = changes.pop("endpoint", {})
    endpoints = changes.pop("endpoints", None) or [{}] * len(engines)
    model = changes.pop("model", {})
    data = {
        "server": {"port": any_port(), "drainTimeout": 5.0, **changes.pop("server", {})},
        "stores": {"stateDir": str(state), "checkpointEvery": 0.2},
        "pools": [{"name": "main", "endpoints": [{"url": e.url, "name": f"engine-{i}", "servedModel": MODEL, **endpoint,
                                                  **endpoints[i]} for i, e in enumerate(engines)]}],
        "models": [{"name": MODEL, "pool": "main", "aliases": ["alias"], "prices": PRICES,
                    "apis": ["chat", "completions", "embeddings"], **model}],
        **changes,
    }  # fmt: skip
    return msgspec.convert(data, Config)


@asynccontextmanager
async def opened(configured: Config, postgres: str, valkey: str, tenant_name: str = "acme") -> AsyncIterator[Door]:
    async with running(configured, postgres_url=postgres, valkey_url=valkey) as service, listening(service):
        tenant = await service.tenancy.create_tenant(tenant_name)
        project = await service.tenancy.create_project(tenant.id, "main")
        issued = await service.tenancy.create_key(project.id, scopes=SCOPES)
        door = Door(service, issued.secret, issued.key.id)
        try:
            yield door
        finally:
            await door.http.aclose()
            await door.openai.close()
