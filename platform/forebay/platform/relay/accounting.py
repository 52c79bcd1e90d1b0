"""One attempt's usage records: opened at dispatch, checkpointed while it streams, closed exactly once."""

import asyncio
import time

from msgspec import Struct

from forebay.metering import (
    Attempt,
    Checkpoint,
    Quantities,
    Spool,
    Status,
    TerminatedBy,
    UsageRecord,
    billable,
    is_measured,
    quantities,
)
from forebay.platform.errors import unavailable
from forebay.platform.limits.permit import UNLIMITED, Permit
from forebay.platform.relay import metrics
from forebay.router import Usage

DURABLE_TIMEOUT_S = 10.0


class Counted(Struct, frozen=True):
    """An attempt's usage twice: as the engine's own counters have it, and by OpenAI's convention on the wire."""

    engine: Quantities
    reported: Quantities
    measured: bool
    estimated: bool = False  # of `reported` something was counted here


_NOTHING = Counted(Quantities(), Quantities(), measured=True)


def count(
    usage: Usage | None, *, n: int, prompts: int, per_choice: bool, aborted: bool, generates: bool = True
) -> Counted:
    """What an engine's usage object means.

    `per_choice`: the engine's counters count a prompt once for each of the `n` choices, while its usage object names
    it once. Of several choices or prompts it names the cached tokens of only one (both seen on vLLM 0.32); hence
    `measured` is false there: totals are exact, their split by cache is not. A request stopped before its first token
    is counted nowhere by vLLM: it is free.
    """
    if usage is None:
        return Counted(Quantities(), Quantities(), measured=False)
    if aborted and not usage.completion_tokens:
        return _NOTHING
    reported = quantities(
        usage.prompt_tokens, usage.cached, usage.cache_write, usage.completion_tokens, usage.reasoning
    )
    measured = is_measured(usage.prompt_tokens, usage.completion_tokens if generates else 0)
    if not per_choice or n * prompts == 1:
        return Counted(reported, reported, measured)
    engine = quantities(
        (usage.prompt_tokens or 0) * n, usage.cached, usage.cache_write, usage.completion_tokens, usage.reasoning
    )
    return Counted(engine, reported, measured=False)


class Account:
    """The records of one attempt. `close` may be called once; a failure to be durable in time is a 503."""

    def __init__(
        self, spool: Spool, attempt: Attempt, permit: Permit = UNLIMITED, *, continues: bool = False
    ) -> None:
        """`continues`: it goes on with another's answer, which its prompt is counted with."""
        self._spool = spool
        self._permit = permit
        self._continues = continues
        self._attempt = attempt
        self._opened = spool.open(attempt)
        self._first_byte_s: float | None = None
        self._dispatched = time.monotonic()
        self.closed = False

    def begun(self) -> None:
        """The engine's first byte has come."""
        self._first_byte_s = time.monotonic() - self._dispatched

    async def opened(self) -> None:
        """Wait until the open record would survive the death of this process."""
        await _durable(self._opened)

    def checkpoint(self, counted: Counted) -> None:
        a = self._attempt
        used = counted.reported
        self._permit.counted(a.attempt, Quantities(output=used.output) if self._continues else used)
        self._spool.checkpoint(Checkpoint(a.request_id, a.attempt, counted.engine, time.time()))

    async def close(
        self,
        status: Status,
        by: TerminatedBy,
        counted: Counted = _NOTHING,
        *,
        finish_reason: str | None = None,
        error: str | None = None,
        at: float | None = None,
        reported: Quantities | None = None,
    ) -> None:
        """`at`: when it ended, if not now. `reported`: what the client
        got of it, where that is not all."""
        self.closed = True
        record = UsageRecord(
            self._attempt,
            counted.engine,
            billable(status, counted.reported if reported is None else reported, continues=self._continues),
            status,
            by,
            counted.measured,
            time.time() if at is None else at,
            self._first_byte_s,
            _plain(finish_reason),
            error,
            counted.estimated,
        )
        self._permit.counted(self._attempt.attempt, record.billable)
        for kind, tokens in (
            ("input", record.billable.input_total),
            ("cache_read", record.billable.cache_read),
            ("output", record.billable.output),
        ):
            if tokens:
                metrics.tokens(self._attempt.model, kind).inc(tokens)
        await _durable(self._spool.close(record))


def _plain(reason: str | None) -> str | None:
    """An engine's word that the ledger can hold."""
    return None if reason is None else reason[:64] if reason.isprintable() else "unreadable"


async def _durable(future: "asyncio.Future[None]") -> None:
    if not future.done():
        late = future.get_loop().call_later(DURABLE_TIMEOUT_S, _give_up, future)
        try:
            await future
        finally:
            late.cancel()
    future.result()


def _give_up(future: "asyncio.Future[None]") -> None:
    """The record is written all the same, when it can be."""
    if not future.done():
        future.set_exception(
            unavailable("metering_unavailable", "Usage cannot be recorded at the moment.", retry_after=5)
        )
