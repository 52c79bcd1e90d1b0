"""Measures requests against limits: in Valkey, together with all other front doors, or by this process's share."""

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from prometheus_client import Histogram

from forebay.platform.limits import metrics, scripts
from forebay.platform.limits.link import Away, Link
from forebay.platform.limits.mirror import Mirror
from forebay.platform.limits.refusal import Seen
from forebay.platform.limits.rules import Check
from forebay.platform.limits.window import Clock, Window, window

log = logging.getLogger(__name__)

LEASE_S = 12.0  # that a slot is held for, unless it is renewed
RENEW_S = 3.0
_AT_ONCE = 256  # slots renewed in one command


class Verdict(Struct, frozen=True):
    """`refused`: which check failed; nothing is held then."""

    refused: int | None
    window: Window
    seen: list[Seen]


class Limiter:
    """`workers`: processes of this front door, which are there whatever Valkey says. `root` begins the names of all
    keys in Valkey: front doors of one deployment have the same."""

    def __init__(
        self, url: str, root: str, *, workers: int = 1, lease_s: float = LEASE_S, renew_s: float = RENEW_S
    ) -> None:
        self._root = root
        self._workers = workers
        self._lease_ms = round(lease_s * 1000)
        self._renew_s = renew_s
        self._process = b"p" + os.urandom(8).hex().encode()  # one that is started again is another one
        self.clock = Clock()
        self.mirror = Mirror()
        self.link = Link(
            url, f"{root}:processes".encode(), self._process, lease_s=lease_s, every_s=renew_s, returned=self._returned
        )
        self._permits: set[Any] = set()
        metrics.LEASES.set_function(lambda: self.mirror.leases)

    def __repr__(self) -> str:
        return f"<Limiter {self.link!r} [{len(self._permits)} permits, {self.mirror.leases} leases]>"

    @property
    def processes(self) -> int:
        return max(self._workers, self.link.processes, 1)

    def report(self) -> dict[str, Any]:
        """For `/health`."""
        link = self.link
        return {
            "status": "shared" if link.shared else "local share",
            "since": link.since,
            **({} if link.shared else {"error": link.error}),
            "processes": self.processes,
        }

    def root(self, tenant_id: str) -> bytes:
        """Of one tenant's keys."""
        return f"{self._root}:{{{tenant_id}}}".encode()

    async def start(self) -> None:
        """Raises `StoreError` for a Valkey that limits cannot be counted in. One that is away may come."""
        await self.link.start()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.link.run())
            tasks.create_task(self._renewing())

    async def close(self) -> None:
        """To be called while it runs: what requests have given back is given back then."""
        await self.link.close()

    # -- what a permit asks

    def enter(self, permit: Any) -> None:
        """It is told when to say what has been spent until now."""
        self._permits.add(permit)

    def leave(self, permit: Any) -> None:
        self._permits.discard(permit)

    async def reserve(self, request: bytes, phase: int, checks: Sequence[Check]) -> Verdict:
        """All or nothing. Never longer than the deadline, and never an error."""
        number = window(self.clock.now_ms(), phase).number
        if self.link.shared:
            claimed = [0 if check.kind.held else self.mirror.of(check.key, number) for check in checks]
            command = scripts.reserve(
                request, phase, self._process, checks, lease_ms=self._lease_ms, window=number, claimed=claimed
            )
            answer = self.link.ask(command)
            with _timed(metrics.RESERVE):
                try:
                    data = await asyncio.shield(answer)
                except Away:
                    self._doubt(request, phase, number, checks)
                    return self._locally(request, phase, checks)
                except asyncio.CancelledError:
                    answer.add_done_callback(partial(self._unwanted, request, phase, checks))
                    raise
            return self._shared(request, phase, checks, data)
        return self._locally(request, phase, checks)

    def known(self, phase: int, checks: Sequence[Check]) -> list[Seen]:
        """Of limits on tokens, without asking: who is refused for something else costs Valkey no more."""
        number = window(self.clock.now_ms(), phase).number
        if self.link.shared:
            return [Seen(check, self.mirror.total(check, number), check.limit) for check in checks]
        return self._here(checks, number)

    def settle(
        self, request: bytes, phase: int, booked: int, changes: Sequence[tuple[bytes, int | None]]
    ) -> None:
        """`changes`: of each key what is spent in addition, or less than was reserved in window `booked`; None gives a
        slot back."""
        number = window(self.clock.now_ms(), phase).number
        for key, more in changes:
            if more is None:
                self.mirror.give(key, request)
            else:
                self.mirror.spend(key, phase, number if more > 0 else booked, more)
        slots = [key for key, more in changes if more is None]
        answer = self.link.ask(scripts.settle(request, phase, self._process, booked, changes))
        answer.add_done_callback(partial(self._settled, request, slots))

    def _settled(self, request: bytes, slots: list[bytes], answer: "asyncio.Future[bytes]") -> None:
        if answer.exception() is not None:
            for key in slots:
                self.mirror.doubt(key, request)

    # -- in Valkey, or here

    def _shared(self, request: bytes, phase: int, checks: Sequence[Check], data: bytes) -> Verdict:
        reply = scripts.reply(data)
        metrics.IN_VALKEY.inc()
        self.clock.heard(reply.now_ms)
        if reply.refused is None:
            self._note(request, phase, checks, reply.window.number)
        for check, total in zip(checks, reply.used, strict=True):
            self.mirror.hear(check, total, reply.window.number, reply.now_ms)
        seen = [Seen(check, used, check.limit) for check, used in zip(checks, reply.used, strict=True)]
        return Verdict(reply.refused, reply.window, seen)

    def _locally(self, request: bytes, phase: int, checks: Sequence[Check]) -> Verdict:
        metrics.HERE.inc()
        now = window(self.clock.now_ms(), phase)
        seen = self._here(checks, now.number)
        refused = next((index for index, one in enumerate(seen) if one.used + one.check.cost > one.allowed), None)
        if refused is None:
            self._note(request, phase, checks, now.number)
            for one in seen:
                one.used += one.check.cost
        return Verdict(refused, now, seen)

    def _here(self, checks: Sequence[Check], number: int) -> list[Seen]:
        """By this process's share."""
        mirror, now_ms, processes = self.mirror, self.clock.now_ms(), self.processes
        return [
            Seen(check, mirror.used(check, number), mirror.allowed(check, number, now_ms, processes))
            for check in checks
        ]

    def _note(self, request: bytes, phase: int, checks: Sequence[Check], number: int) -> None:
        for check in checks:
            if check.kind.held:
                self.mirror.take(check.key, request)
            else:
                self.mirror.spend(check.key, phase, number, check.cost)

    def _unwanted(
        self, request: bytes, phase: int, checks: Sequence[Check], answer: "asyncio.Future[bytes]"
    ) -> None:
        """Of a request that ended while it asked."""
        if answer.exception() is not None:
            self._doubt(request, phase, window(self.clock.now_ms(), phase).number, checks)
            return
        verdict = self._shared(request, phase, checks, answer.result())
        if verdict.refused is None:
            changes = [(check.key, None if check.kind.held else -check.cost) for check in checks]
            self.settle(request, phase, verdict.window.number, changes)

    def _doubt(self, request: bytes, phase: int, number: int, checks: Sequence[Check]) -> None:
        """It may have been done, or not."""
        for check in checks:
            if check.kind.held:
                self.mirror.doubt(check.key, request)
            else:
                self.mirror.spend(check.key, phase, number, 0)

    # -- in the background

    async def _renewing(self) -> None:
        while True:
            await asyncio.sleep(self._renew_s)
            self.mirror.forget(self.clock.now_ms())
            for command in self._renewals():
                self.link.tell(command)
            for count, permit in enumerate(tuple(self._permits)):
                permit.progress()
                if count % _AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _renewals(self) -> list[bytes]:
        commands = []
        for key, held in self.mirror.slots.items():
            requests = list(held)
            commands += [
                scripts.renew(key, self._lease_ms, requests[start : start + _AT_ONCE])
                for start in range(0, len(requests), _AT_ONCE)
            ]
        return commands

    def _returned(self) -> list[bytes]:
        """What Valkey must know first: slots that are held, and what was spent of the present windows."""
        self.mirror.forget(self.clock.now_ms())
        claims = [scripts.claim(key, self._process, spent) for key, spent in self.mirror.spent.items()]
        gone = [
            scripts.settle(request, 0, self._process, 0, [(key, None)]) for key, request in self.mirror.doubts()
        ]
        return self._renewals() + gone + claims


class _timed:  # noqa: N801 - reads as a word
    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._histogram.observe(time.perf_counter() - self._began)
