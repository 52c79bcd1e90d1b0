"""A request's way through its attempts: placed, dispatched, and moved elsewhere while the tenant has seen nothing."""

from forebay.metering import Spool
from forebay.platform.config.model import Timeouts
from forebay.platform.errors import ApiError
from forebay.platform.relay import upstream_errors
from forebay.platform.relay.call import Call
from forebay.platform.relay.client import Client
from forebay.platform.relay.exchange import Exchange, TryElsewhere
from forebay.platform.relay.metrics import FAILOVERS
from forebay.platform.tenancy.principal import Scope
from forebay.router import Endpoint

MAX_ATTEMPTS = 3  # a request that fails on three endpoints is more likely at fault itself


class Relay:
    def __init__(self, spool: Spool, timeouts: Timeouts, *, checkpoint_every: float) -> None:
        self._spool = spool
        self._timeouts = timeouts
        self._checkpoint_every = checkpoint_every

    async def run(self, call: Call, client: Client) -> None:
        """Answer `client`. Raises `ApiError` where the answer is an error; the caller says it to the client."""
        tried: set[str] = set()
        failure: ApiError | None = None
        suspects: list[tuple[Endpoint, str]] = []
        while len(tried) < MAX_ATTEMPTS and not client.left:
            placed = call.pool.place(call.inference.work, call.affinity, tried)
            if placed is None:
                break
            endpoint, booking = placed
            if tried:
                FAILOVERS.inc()
            tried.add(endpoint.name)
            if Scope.DEBUG in call.principal.scopes:
                client.debug_headers = [(b"x-forebay-endpoint", endpoint.name.encode())]
            exchange = Exchange(
                call,
                client,
                endpoint,
                booking,
                number=len(tried),
                spool=self._spool,
                timeouts=self._timeouts,
                checkpoint_every=self._checkpoint_every,
            )
            try:
                await exchange.run()
            except TryElsewhere as retry:
                failure = retry.error
                if retry.suspicion:
                    suspects.append((endpoint, retry.suspicion))
            else:
                for suspect, reason in suspects if not client.left else ():
                    suspect.failed(reason)
                return
        if not client.left:
            raise failure or upstream_errors.no_endpoint(call.asked)
