"""What one request holds of its limits, from its arrival until its answer has ended."""

from forebay.metering import Quantities
from forebay.platform.limits import metrics, refusal
from forebay.platform.limits.limiter import Limiter, Verdict
from forebay.platform.limits.refusal import Seen
from forebay.platform.limits.rules import Check, Kind, Limit, counts_input, gate, unread, whole
from forebay.platform.limits.window import phase_of, window


class Permit:
    """`close` gives back what is not spent, whatever came before it, and may be called more than once."""

    limited = True

    def __init__(self, limiter: Limiter, request_id: str, tenant_id: str, limits: tuple[Limit, ...]) -> None:
        self._limiter = limiter
        self._request = request_id.encode()
        self._root = limiter.root(tenant_id)
        self._phase = phase_of(tenant_id)
        self._limits = limits
        self._held: list[tuple[Check, int]] = []  # with the window in which it was reserved
        self._charged: dict[bytes, int] = {}
        self._seen: dict[bytes, Seen] = {}
        self._ends_ms = 0
        self._read = False
        self._attempts: dict[int, Quantities] = {}
        self._closed = False

    async def enter(self) -> None:
        """Before anything is read of the request. Raises `ApiError` 429."""
        await self._reserve(gate(self._limits, self._root))

    def counts_input(self, model: str) -> bool:
        """Whether it matters how much of the prompt no cache holds."""
        return counts_input(self._limits, model)

    async def take(self, model: str, uncached: int, output: int) -> None:
        """When the prompt is known: tokens that are expected to be spent. Raises `ApiError` 429."""
        self._read = True
        costs = {Kind.INPUT: max(1, uncached), Kind.OUTPUT: output}  # an engine reads at least a prompt's last token
        await self._reserve(whole(self._limits, self._root, model, costs))

    def placed(self) -> None:
        """An engine was given the request: it waits no more."""
        queued = [(check, number) for check, number in self._held if check.kind is Kind.QUEUED]
        if queued:
            self._held = [held for held in self._held if held[0].kind is not Kind.QUEUED]
            self._limiter.settle(self._request, self._phase, queued[0][1], [(check.key, None) for check, _ in queued])

    def counted(self, attempt: int, quantities: Quantities) -> None:
        """What an attempt has used until now, or in the end is billed for."""
        self._attempts[attempt] = quantities

    def progress(self) -> None:
        """Charge what has been used beyond what was reserved, while the answer goes on."""
        self._charge(self._held, final=False)

    def close(self, *, refund: bool = False) -> None:
        """The request is over. `refund`: it counts as if it had not come."""
        if self._closed:
            return
        self._closed = True
        self._limiter.leave(self)
        held, self._held = self._held, []
        self._charge(held, final=True, refund=refund)

    def headers(self) -> refusal.Headers:
        """Of one that ended before its prompt was known, of tokens what this process knows."""
        now_ms = self._limiter.clock.now_ms()
        left_ms = max(0, self._ends_ms - now_ms) if self._ends_ms else window(now_ms, self._phase).left_ms
        seen = [*self._seen.values()]
        if not self._read:
            seen += self._limiter.known(self._phase, unread(self._limits, self._root))
        return refusal.headers(seen, left_ms)

    async def _reserve(self, checks: list[Check]) -> None:
        if not checks:
            return
        verdict = await self._limiter.reserve(self._request, self._phase, checks)
        self._ends_ms = self._limiter.clock.now_ms() + verdict.window.left_ms
        for seen in verdict.seen:
            self._seen[seen.check.key] = seen
        if verdict.refused is not None:
            self._refuse(verdict)
        self._held += [(check, verdict.window.number) for check in checks]
        self._limiter.enter(self)

    def _refuse(self, verdict: Verdict) -> None:
        seen = next((one for one in verdict.seen if one.check.never), verdict.seen[verdict.refused or 0])
        metrics.REFUSALS.labels(seen.check.kind.value, seen.check.level.value).inc()
        raise refusal.refusal(seen, verdict.window.left_ms)

    def _charge(self, held: list[tuple[Check, int]], *, final: bool, refund: bool = False) -> None:
        """By window, since a request may have come in one and have been read in the next."""
        used = {
            Kind.REQUESTS: 0 if refund else 1,
            Kind.INPUT: sum(one.input_uncached + one.cache_write for one in self._attempts.values()),
            Kind.OUTPUT: sum(one.output for one in self._attempts.values()),
        }
        changes: dict[int, list[tuple[bytes, int | None]]] = {}
        for check, number in held:
            if check.kind.held:
                if final:
                    changes.setdefault(number, []).append((check.key, None))
                continue
            charged = self._charged.get(check.key, check.cost)
            more = used[check.kind] - charged
            if more > 0 or (final and more):
                self._charged[check.key] = charged + more
                self._seen[check.key].used += more
                changes.setdefault(number, []).append((check.key, more))
        for number, some in changes.items():
            self._limiter.settle(self._request, self._phase, number, some)


class Unlimited(Permit):
    """Of a key without limits: nothing is asked of anybody."""

    limited = False

    def __init__(self) -> None:
        pass

    def placed(self) -> None:
        pass

    def counted(self, attempt: int, quantities: Quantities) -> None:
        pass

    def close(self, *, refund: bool = False) -> None:
        pass


UNLIMITED = Unlimited()
