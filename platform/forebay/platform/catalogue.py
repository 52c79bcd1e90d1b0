"""The models tenants may ask for, by name or alias, and what each costs at a moment (pure)."""

from collections.abc import Sequence

from msgspec import Struct

from forebay.metering import Price, in_force
from forebay.platform.config.model import Config, Model
from forebay.platform.errors import ApiError, invalid
from forebay.platform.tenancy.principal import Principal
from forebay.router import Pool

_API_NAMES = {"chat.completions": "chat", "completions": "completions", "embeddings": "embeddings"}


class Entry(Struct, frozen=True):
    model: Model
    pool: Pool
    prices: tuple[Price, ...]

    def price_version(self, now: float, own: Sequence[Price] = ()) -> str:
        """The version in force for a tenant with overrides `own`, or "" where usage costs nothing."""
        price = in_force(own, self.prices, self.model.name, now)
        return price.version if price else ""


class Catalogue:
    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self._by_name = {name: entry for entry in entries for name in (entry.model.name, *entry.model.aliases)}

    def visible(self, principal: Principal) -> list[Entry]:
        allowed = principal.models
        return [entry for entry in self.entries if allowed is None or entry.model.name in allowed]

    def resolve(self, name: str, principal: Principal) -> Entry:
        """Raises `ApiError` 404, the same for a model that does not exist and one the project may not use."""
        entry = self._by_name.get(name)
        if entry is None or not (principal.models is None or entry.model.name in principal.models):
            raise ApiError(
                404,
                "model_not_found",
                f"The model '{name[:128]}' does not exist or you do not have access to it.",
                type="invalid_request_error",
                param="model",
            )
        return entry

    def for_api(self, name: str, principal: Principal, api: str) -> Entry:
        entry = self.resolve(name, principal)
        if _API_NAMES[api] not in entry.model.apis:
            raise invalid(
                f"The model '{name}' does not serve this API; it serves: {', '.join(entry.model.apis)}.",
                param="model",
                code="unsupported_model",
            )
        return entry


def names_of(config: Config) -> dict[str, str]:
    """Each model's name, by itself and its aliases."""
    return {name: model.name for model in config.models for name in (model.name, *model.aliases)}


def prices_of(config: Config) -> list[Price]:
    """Every price version in the configuration; cached and written input default to the input price."""
    return [
        Price(
            model=model.name,
            version=p.version,
            effective_from=p.effective_from.timestamp(),
            currency=config.currency,
            input=p.input,
            output=p.output,
            cache_read=p.input if p.cache_read is None else p.cache_read,
            cache_write=p.input if p.cache_write is None else p.cache_write,
        )
        for model in config.models
        for p in model.prices
    ]
