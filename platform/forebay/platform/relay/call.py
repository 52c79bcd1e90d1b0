"""What one admitted request carries through the relay."""

from msgspec import Struct

from forebay.platform.api.requests import Inference
from forebay.platform.tenancy.principal import Principal
from forebay.router import Pool

DEFAULT_TIER = "default"


class Call(Struct, frozen=True):
    """An admitted request. `model` is the catalogue's name, `asked` the name the tenant used (it may be an alias)."""

    request_id: str
    principal: Principal
    inference: Inference
    model: str
    asked: str
    pool: Pool
    price_version: str
    cache_salt: str
    tier_used: str = DEFAULT_TIER

    @property
    def affinity(self) -> bytes:
        return self.principal.project_id.encode() + self.inference.affinity
