"""How an attempt ends: what is recorded of it, what the router hears, and whether its request goes on elsewhere."""

import asyncio
from collections.abc import Sequence

from msgspec import Struct, structs

from forebay.metering import Status, TerminatedBy
from forebay.platform.errors import ApiError
from forebay.platform.relay import objectives
from forebay.platform.relay.accounting import Account, Counted
from forebay.platform.relay.answer import said
from forebay.platform.relay.call import Call
from forebay.platform.relay.chain import Chain
from forebay.platform.relay.client import Client
from forebay.platform.relay.elsewhere import CutOff, TryElsewhere
from forebay.platform.relay.frames import StreamTransform
from forebay.platform.relay.metrics import ATTEMPTS_FAILED, INTERRUPTED
from forebay.platform.relay.patience import Patience
from forebay.platform.relay.tally import Tally
from forebay.platform.relay.told import Told, outcome, used
from forebay.platform.relay.untold import Untold, is_told
from forebay.platform.tiers import Terms
from forebay.router import Endpoint, Usage


class Ending(Struct):
    """Of one attempt: exactly one of `complete`, `left`, `fail`, `move` and `interrupted` accounts for it."""

    call: Call
    client: Client
    endpoint: Endpoint
    terms: Terms
    chain: Chain
    untold: Untold
    account: Account
    told: Told
    tally: Tally
    stream: StreamTransform
    patience: Patience

    @property
    def continues(self) -> bool:
        """Whether it goes on with another's answer."""
        return self.chain.carried is not None

    async def complete(
        self,
        usage: Usage | None,
        finish_reason: str | None,
        *,
        first_token_s: float,
        decode_s: float | None,
        body: bytes = b"",
    ) -> None:
        """The answer is whole; `body`, where it is not a stream."""
        told = outcome(self.call.inference, usage, finish_reason, first_token_s=first_token_s, decode_s=decode_s)
        self.told.ended(told)
        if self.chain.carried is None:
            objectives.decoded(self.terms, told.decode_s, told.output)
        counted = self.tally.count(usage)
        if not is_told(self.call, usage, continues=self.continues):
            counted, usage = await self._count(counted, usage, said(body) if body else self.chain.own_text)
        await self._close(Status.COMPLETED, TerminatedBy.ENGINE, counted, usage, finish_reason)

    async def left(self, finish_reason: str | None = None) -> None:
        """The tenant left."""
        counted, usage = self.tally.counted(aborted=True), self.tally.usage
        self.told.ended(used(self.call.inference, usage))
        if not is_told(self.call, self.tally.told, continues=self.continues) and self.call.inference.stream:
            counted, usage = await self._count(counted, usage, self.chain.own_text, aborted=True)
        await self._close(Status.CANCELLED, TerminatedBy.CLIENT, counted, usage, finish_reason)

    async def fail(self, error: ApiError, *, retry: bool, suspicion: str = "") -> None:
        """Account for the failure, then say what is to happen to the request. Returns only if the tenant has left."""
        by = TerminatedBy.DEADLINE if error.status == 504 else TerminatedBy.ENGINE
        if self.client.left:
            await self.left()
            return
        if error.status >= 500:  # else the request is at fault
            ATTEMPTS_FAILED.labels(endpoint=self.endpoint.name, code=error.code).inc()
        if not (retry and self._hold(error, by)):
            await self._failed(error, by)
        if retry:
            raise CutOff(error, suspicion) if self.patience.begun else TryElsewhere(error, suspicion)
        raise error

    async def move(self, error: ApiError) -> None:
        """It was taken away from its engine."""
        if not self._hold(error, TerminatedBy.FRONT_DOOR):
            await self._failed(error, TerminatedBy.FRONT_DOOR)
        raise CutOff(error, moved=True) if self.patience.begun else TryElsewhere(error, moved=True)

    async def interrupted(self) -> None:
        """Cancelled, or a fault of our own: nothing is billed, nothing is forgotten."""
        INTERRUPTED.inc()
        counted = self.tally.counted()
        await self.account.close(Status.FAILED, TerminatedBy.FRONT_DOOR, counted, error="interrupted")

    def forget(self) -> None:
        """The tenant does not get what it was not shown."""
        if self.chain.seam is not None:
            self.chain.seam.forget()

    def blame(self, reason: str) -> None:
        """Not where the tenant has left."""
        if not self.client.left:
            self.told.failed(reason)

    async def _count(
        self, counted: Counted, usage: Usage | None, texts: Sequence[str], *, aborted: bool = False
    ) -> tuple[Counted, Usage | None]:
        """With what the engine did not tell counted here. What it had not begun stays free."""
        if aborted and not any(texts):
            return counted, usage
        filled = await self.untold.counted(self.call, usage, texts, continues=self.continues)
        reported = self.tally.count(filled, aborted=aborted).reported
        changed = filled != (usage or Usage())
        return structs.replace(counted, reported=reported, measured=False, estimated=changed), filled

    async def _failed(self, error: ApiError, by: TerminatedBy) -> None:
        await self.account.close(Status.FAILED, by, self.tally.counted(), error=error.code)
        self.forget()

    async def _close(
        self, status: Status, by: TerminatedBy, counted: Counted, usage: Usage | None, finish_reason: str | None
    ) -> None:
        """The answer has ended, and with it the attempts that were cut: on disk together."""
        closed = self.account.close(status, by, counted, finish_reason=finish_reason)
        if self.chain.cut_short:
            await asyncio.gather(closed, self.chain.settle(usage))
        else:
            await closed

    def _hold(self, error: ApiError, by: TerminatedBy) -> bool:
        """Whether this is an answer of which the tenant has seen a part, and that may go on elsewhere."""
        if self.chain.seam is None or not self.patience.begun:
            return False
        self.forget()
        self.told.ended(used(self.call.inference, self.tally.usage))
        stream = self.stream
        self.chain.hold(
            self.account, self.tally.counted(), stream.usage(), stream.identity(), by=by, error=error.code
        )
        return True
