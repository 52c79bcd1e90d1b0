"""Meter events through Stripe's stream: a session renewed before it ends, requests of up to 100, a rate kept, and a
wait that grows while Stripe is away."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from forebay.metering.stripe import metrics
from forebay.metering.stripe.client import (
    BATCH,
    Api,
    AwayError,
    DuplicateError,
    MeterEvent,
    RefusedError,
    RejectedKeyError,
    Session,
    StripeError,
)

_RENEW_BEFORE = timedelta(minutes=1)
_TRIES = 6  # of one call, before it is left to the next sync
_FIRST_WAIT, _LAST_WAIT = 0.5, 30.0  # seconds

Clock = Callable[[], datetime]
Sleep = Callable[[float], Awaitable[None]]
Outcome = Callable[[Sequence[str], str], Awaitable[None]]


class Caller:
    """Calls of Stripe, one at a time, not more often than `rate` a second; what may be repeated is, for a while."""

    def __init__(self, api: Api, rate: float, clock: Clock, sleep: Sleep = asyncio.sleep) -> None:
        self.api = api
        self._pause = 1.0 / rate
        self._clock = clock
        self._sleep = sleep

    async def call(self, work: Callable[..., Any], *given: Any) -> Any:
        """The answer of a call that does no harm twice. Raises `StripeError`; `AwayError` only after several tries."""
        wait = _FIRST_WAIT
        for attempt in range(_TRIES):
            await self._sleep(self._pause)
            try:
                return await asyncio.to_thread(work, *given)
            except AwayError as error:
                metrics.failures.labels(kind="limited" if error.status == 429 else "away").inc()
                if attempt == _TRIES - 1:
                    raise
                await self._sleep(max(error.after or 0.0, wait * random.uniform(0.5, 1.0)))  # noqa: S311 - to spread
                wait = min(wait * 2, _LAST_WAIT)
            except RejectedKeyError:
                metrics.failures.labels(kind="key").inc()
                raise
        raise AssertionError

    def now(self) -> datetime:
        return self._clock()


class Stream:
    """`accepted` and `refused` are awaited with identifiers as soon as it is known: with how, or with a code."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._session: Session | None = None

    async def send(self, events: Sequence[MeterEvent], accepted: Outcome, refused: Outcome) -> None:
        """All of them, in requests of up to 100. Raises `StripeError` where Stripe is away or refuses the key; those
        not told of then may or may not be there."""
        for start in range(0, len(events), BATCH):
            batch = events[start : start + BATCH]
            try:
                await self._put(batch)
            except (DuplicateError, RefusedError) as error:
                await self._apart(batch, error, accepted, refused)
            else:
                await accepted([one.identifier for one in batch], "accepted")

    async def _apart(
        self, batch: Sequence[MeterEvent], error: StripeError, accepted: Outcome, refused: Outcome
    ) -> None:
        """A request that was refused for some of its events: each by itself. Those that had been taken are duplicates
        now."""
        if len(batch) > 1:
            for one in batch:
                try:
                    await self._put([one])
                except (DuplicateError, RefusedError) as its:
                    await self._apart([one], its, accepted, refused)
                else:
                    await accepted([one.identifier], "accepted")
        elif isinstance(error, DuplicateError):
            await accepted([batch[0].identifier], "duplicate")
        else:
            await refused([batch[0].identifier], error.code)

    async def _put(self, batch: Sequence[MeterEvent]) -> None:
        try:
            await self._caller.call(self._caller.api.send, await self._open(), batch)
        except RejectedKeyError:  # a token may end before its time
            self._session = None
            await self._caller.call(self._caller.api.send, await self._open(), batch)

    async def _open(self) -> Session:
        now = self._caller.now()
        if self._session is None or now >= self._session.expires_at - _RENEW_BEFORE:
            self._session = await self._caller.call(self._caller.api.open_session)
        return self._session
