"""One request's answer over its attempts: what the client has of it, and the records of attempts that were cut.

A cut attempt is billed what the client has of it, once the answer is whole or the client has left; of an answer that
fails nothing is billed. So its record stays open until that is known. The prompt is billed with the first attempt, by
the counts of the first engine that tells them: one that dies does not tell what it had in its cache.
"""

import asyncio
import time
from typing import Any

from msgspec import Struct, structs

from forebay.metering import Quantities, Status, TerminatedBy, quantities
from forebay.platform.relay.accounting import Account, Counted
from forebay.platform.relay.call import Call
from forebay.platform.relay.resumed import Carried
from forebay.platform.relay.seam import Seam
from forebay.router import Usage


class _Held(Struct):
    account: Account
    counted: Counted
    by: TerminatedBy
    error: str
    at: float
    delivered: int = 0  # tokens of the answer that are this attempt's


class Chain:
    """`seam` is None where nothing is ever continued. `carried` is set once something is."""

    def __init__(self, seam: Seam | None) -> None:
        self.seam = seam
        self.carried: Carried | None = None
        self.origin: Call | None = None  # the request as it came, once it is continued
        self._identity: dict[str, Any] = {}
        self._prompt: Usage | None = None
        self._held: list[_Held] = []

    @property
    def cut_short(self) -> bool:
        """Whether records of attempts are still open."""
        return bool(self._held)

    def hold(
        self,
        account: Account,
        counted: Counted,
        usage: Usage | None,
        identity: dict[str, Any],
        *,
        by: TerminatedBy,
        error: str,
    ) -> None:
        """An attempt was cut, by whom, after the client had seen something of it."""
        account.closed = True
        account.checkpoint(counted)
        self._held.append(_Held(account, counted, by, error, time.time()))
        if self.carried is None:
            self._identity, self._prompt = identity, usage

    def carry(self, origin: Call, tokens: int, seen: str) -> None:
        """The next attempt goes on with the answer to `origin`, behind so many of its tokens."""
        self.origin = origin
        assert self._prompt is not None
        assert self.seam is not None
        self._deliver(tokens)
        self.seam.resumed(tokens)
        self.carried = Carried(self._identity, self._prompt, tokens, seen)

    @property
    def own_text(self) -> list[str]:
        """What the client has of the answer, but for what attempts that were cut are billed; empty where it is not
        kept."""
        seen = "" if self.carried is None else self.carried.seen
        return [] if self.seam is None else [seen + self.seam.latest]

    @property
    def prompt_told(self) -> bool:
        return self._prompt is not None and self._prompt.prompt_tokens is not None

    async def settle(self, usage: Usage | None) -> None:
        """The answer is whole, or the client has left it: bill what it has of the attempts that were cut. `usage`: of
        the attempt that ends it."""
        await self._close(Status.CONTINUED, self._input(usage))

    async def leave(self) -> None:
        """The client left while nothing was generated for it."""
        if self.seam is not None and self._held and self.prompt_told:
            cut = self.seam.cut(greedy=True)
            if cut.tokens is not None:
                self._deliver(cut.tokens)
        await self._close(Status.CANCELLED, self._input(None), TerminatedBy.CLIENT)

    async def fail(self) -> None:
        """The answer is never to be whole."""
        await self._close(Status.FAILED, Quantities())

    def _deliver(self, tokens: int) -> None:
        """Of the answer's tokens, those of the latest attempt. An engine may count less than it did."""
        before = sum(held.delivered for held in self._held[:-1])
        self._held[-1].delivered = max(0, tokens - before)

    def _input(self, usage: Usage | None) -> Quantities:
        if self._prompt is None:
            return Quantities()
        carried = self.carried or Carried({}, self._prompt, 0)
        told = carried.merged(usage or Usage())
        return quantities(told.prompt_tokens, told.cached, told.cache_write)

    async def _close(self, status: Status, prompt: Quantities, by: TerminatedBy | None = None) -> None:
        held, self._held = self._held, []
        waits = []
        for number, one in enumerate(held):
            billed = structs.replace(prompt if number == 0 else Quantities(), output=one.delivered)
            waits.append(
                one.account.close(status, by or one.by, one.counted, error=one.error, at=one.at, reported=billed)
            )
        await asyncio.shield(asyncio.gather(*waits))  # nobody else knows of them any more
