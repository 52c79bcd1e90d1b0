"""What a worker says of the whole front door: asked over the router's socket, put together here.

Any worker may be asked, since a client cannot choose the one that accepts its connection.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from forebay.platform.sharing.report import is_well
from forebay.platform.workers import gathered
from forebay.router import RemoteRouter, RouterUnavailable

GATHER_S = 1.0  # seconds that one process may take to say how it is
ROUTER = "router"


class Status(Struct, frozen=True):
    """How one process is. `body` is what its `/health` would say of it alone."""

    ready: bool
    body: dict[str, Any]


class Gathered(Struct, frozen=True):
    """The answers of the processes by name; None of one that did not answer in time, or is being started."""

    answers: dict[str, bytes | None]


_status = msgspec.json.Decoder(Status).decode
_gathered = msgspec.msgpack.Decoder(Gathered).decode


class View:
    """`name` is this worker's."""

    def __init__(self, router: RemoteRouter, name: str) -> None:
        self._router = router
        self._name = name

    async def metrics(self) -> bytes:
        """Of every process that answers; of this one alone while the router does not."""
        answers = await self._ask("metrics")
        found = {name: data for name, data in answers.items() if data is not None}
        return await asyncio.to_thread(gathered.exposition, found or {self._name: await gathered.taken()})

    async def report(self, own: Status) -> tuple[bool, dict[str, Any]]:
        """Whether the front door is ready, and its health."""
        answers = await self._ask("status")
        return together(own, {name: None if data is None else _status(data) for name, data in answers.items()})

    async def _ask(self, name: str) -> dict[str, bytes | None]:
        try:
            return _gathered(await self._router.query(name, timeout=2 * GATHER_S)).answers
        except RouterUnavailable:
            return {}


def together(own: Status, others: Mapping[str, Status | None]) -> tuple[bool, dict[str, Any]]:
    """`own` is this worker's, `others` everybody's, the router's among them. Ready: the router and one worker."""
    router = others.get(ROUTER)
    workers = {name: status for name, status in others.items() if name != ROUTER}
    ready = router is not None and router.ready and any(status and status.ready for status in workers.values())
    sharing = router.body.get("load_sharing") if router is not None else None
    well = ready and all(status and status.body["status"] == "ok" for status in workers.values()) and is_well(sharing)
    everybody = (*workers.values(), own)
    limits = _limits([one.body["limits"] for one in everybody if one is not None and "limits" in one.body])
    waiting = router.body.get("waiting") if router is not None else None
    return ready, {
        **own.body,
        "status": "ok" if well else "degraded" if ready else "unavailable",
        "spool": _spools([status.body["spool"] for status in workers.values() if status] or [own.body["spool"]]),
        **({"waiting": waiting} if waiting is not None else {}),
        **({"load_sharing": sharing} if sharing else {}),
        **({"limits": limits} if limits else {}),
        "router": _router(router),
        "workers": {name: _worker(status) for name, status in workers.items()},
    }


def _router(status: Status | None) -> dict[str, Any]:
    """What is said of the front door as a whole is not said again."""
    body = status.body if status is not None else {"status": "away"}
    return {name: value for name, value in body.items() if name not in {"load_sharing", "waiting"}}


def _worker(status: Status | None) -> dict[str, Any]:
    return {"status": status.body["status"], "pid": status.body["pid"]} if status else {"status": "away"}


def _limits(reports: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Shared only where they are by each worker."""
    return next((one for one in reports if one["status"] != "shared"), reports[0] if reports else None)


def _spools(spools: list[dict[str, Any]]) -> dict[str, Any]:
    refusing = any(spool["status"] != "accepting" for spool in spools)
    unshipped = sum(spool["unshipped"] for spool in spools)
    return {"status": "refusing" if refusing else "accepting", "unshipped": unshipped}
