"""What one admitted request carries through the relay, and how it is put to an endpoint (pure)."""

import math
from typing import Any

import msgspec
from msgspec import Struct, structs

from forebay.metering import Attempt
from forebay.platform.api.requests import Inference
from forebay.platform.api.session_identity import UNNAMED, Session
from forebay.platform.limits.permit import UNLIMITED, Permit
from forebay.platform.relay.continuation import Resumption
from forebay.platform.relay.frames import View
from forebay.platform.tenancy.principal import Principal
from forebay.platform.tiers import Terms
from forebay.router import DEFAULT, Ask, Endpoint, Pool, Prompt, Rung, ServerFields

_PATHS = {
    "chat.completions": b"/v1/chat/completions",
    "completions": b"/v1/completions",
    "embeddings": b"/v1/embeddings",
}


class Call(Struct, frozen=True):
    """An admitted request. `model` is the catalogue's name, `asked` the name the tenant used (it may be an alias).
    `tier`: as asked for and allowed; what it is served in, each placement says."""

    request_id: str
    principal: Principal
    inference: Inference
    model: str
    asked: str
    pool: Pool
    price_version: str
    cache_salt: str
    prompt: Prompt
    tier: str = DEFAULT
    session: Session = UNNAMED
    permit: Permit = UNLIMITED

    def ask(
        self,
        exclude: tuple[str, ...],
        *,
        waited_s: float = 0.0,
        patience_s: float = 0.0,
        left_s: float = math.inf,
        promised: bool = False,
        tier: str | None = None,
    ) -> Ask:
        """What to ask the router; `exclude` are the endpoints that were tried. It has waited `waited_s` seconds, and
        may wait `patience_s` more, and take `left_s` in all. `promised`: it had an engine before, in `tier`."""
        inference, prompt = self.inference, self.prompt
        return Ask(
            pool=self.pool.name,
            keys=prompt.keys,
            tokens=prompt.tokens,
            output=inference.output,
            exclude=exclude,
            stream=inference.stream,
            exact=prompt.rung is not Rung.BYTES,
            session=self.session.key,
            patience_s=patience_s,
            waited_s=waited_s,
            left_s=left_s,
            tier=tier or self.tier,
            asked=self.tier,
            tenant=self.principal.tenant_id,
            weight=self.principal.weight,
            promised=promised,
        )

    def to_engine(self, endpoint: Endpoint, rank: int) -> tuple[bytes, bytes]:
        """Head and body of the engine's request. The body is the server's own members and what may pass of the
        tenant's, as it came. `rank`: of the tier that it is served in."""
        spec, adapter, stream = endpoint.spec, endpoint.adapter, self.inference.stream
        server = ServerFields(self.request_id, self.cache_salt, rank, data_parallel_rank=spec.rank)
        members: dict[str, Any] = {"model": spec.served_model}
        if stream:
            members["stream"] = True
            members["stream_options"] = {"include_usage": True}
            if adapter.continuous_usage:
                members["stream_options"]["continuous_usage_stats"] = True
        members.update(adapter.fields(server, priority=spec.priority_scheduling))
        body = b"".join((msgspec.json.encode(members)[:-1], b",", memoryview(self.inference.forward)[1:]))
        return endpoint.head(b"POST", _PATHS[self.inference.api], adapter.headers(server), len(body)), body

    def abort_order(self, endpoint: Endpoint) -> tuple[bytes, bytes] | None:
        return endpoint.adapter.abort(self.inference.api, self.request_id, self.inference.prompts)

    def resumed(self, resumption: Resumption) -> "Call":
        """The same request, for an engine that continues its answer."""
        prompt = structs.replace(self.prompt, tokens=self.prompt.tokens + resumption.cut.known)
        return structs.replace(self, inference=resumption.inference, prompt=prompt)

    def view(self, endpoint: Endpoint, tier: str) -> View:
        inference = self.inference
        return View(
            model=self.asked,
            served_model=endpoint.spec.served_model,
            include_usage=inference.include_usage,
            continuous_usage=inference.continuous_usage,
            tier=tier if inference.tier else None,
            n=inference.n,
            prompts=inference.prompts,
        )

    def attempt(self, number: int, endpoint: Endpoint, terms: Terms, now: float) -> Attempt:
        """The open record of an attempt that begins at `now` (Unix seconds), served on these terms."""
        inference, principal = self.inference, self.principal
        return Attempt(
            request_id=self.request_id,
            attempt=number,
            tenant_id=principal.tenant_id,
            project_id=principal.project_id,
            key_id=principal.key_id,
            api=inference.api,
            model=self.model,
            pool=self.pool.name,
            endpoint=endpoint.name,
            engine=endpoint.spec.engine,
            stream=inference.stream,
            tier_requested=inference.tier or "auto",
            tier_used=terms.name,
            price_version=self.price_version,
            started_at=now,
            price_multiplier=terms.multiplier,
            session=self.session.key,
        )
