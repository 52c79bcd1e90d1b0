"""`forebay.yaml`, apiVersion forebay.dev/v1, as typed structs. Keys are camelCase on disk, snake_case here.

Unknown keys are errors. Durations are seconds, sizes bytes, prices decimal strings per million tokens.
"""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}$", description="1 to 128 letters, digits or ._/:-")]
Url = Annotated[str, Meta(pattern=r"^https?://[^\s/]+[^\s]*$", description="http:// or https://")]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Price = Annotated[Decimal, Meta(description="per million tokens, as a decimal string")]


class _Section(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    pass


class Server(_Section):
    """The front door's own socket and bounds."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    body_limit: Annotated[int, Meta(ge=1024, le=1 << 30)] = 32 << 20
    max_in_flight: Annotated[int, Meta(ge=1, le=100_000)] = 4096
    max_in_flight_per_project: Annotated[int, Meta(ge=1, le=100_000)] = 512
    drain_timeout: Seconds = 30.0


class Timeouts(_Section):
    """Bounds on waiting for an engine. `heartbeat_after` is when a silent stream is answered 200 with comments."""

    connect: Seconds = 2.0
    first_byte: Seconds = 300.0
    idle: Seconds = 120.0
    total: Seconds = 3600.0
    heartbeat_after: Seconds = 10.0


class Stores(_Section):
    """`embedded` runs Postgres and Valkey from wheels inside `state_dir`; otherwise a URL.

    URLs may hold `${NAME}`, read from the environment, so that passwords stay out of the file.
    """

    postgres: str = "embedded"
    valkey: str = "embedded"
    state_dir: str = ".forebay"
    spool_limit_bytes: Annotated[int, Meta(ge=1 << 20)] = 4 << 30
    checkpoint_every: Seconds = 1.0
    key_cache_staleness: Seconds = 300.0  # how long known keys are honoured while Postgres is away


class Secrets(_Section):
    """Files, one secret a line in the form `id:base64`, newest first. Missing files under stateDir are created.

    `key_hash`: hash keys under the first, recognise keys under any. `cache_salt`: derives each project's salt.
    """

    key_hash: str | None = None
    cache_salt: str | None = None


class Endpoint(_Section):
    """One engine server. `served_model` is its own name for the model (default: the model's name in the catalogue)."""

    url: Url
    name: Name | None = None
    engine: Literal["vllm", "sglang", "openai"] = "vllm"
    served_model: str | None = None
    api_key_env: str | None = None  # environment variable holding the engine's own key
    priority_scheduling: bool = False  # the engine runs with --scheduling-policy priority


class Pool(_Section):
    name: Name
    endpoints: Annotated[tuple[Endpoint, ...], Meta(min_length=1)]


class PriceVersion(_Section):
    """Immutable once used; a new price is a new version. Cached and written input default to the input price."""

    version: Name
    effective_from: datetime
    input: Price
    output: Price
    cache_read: Price | None = None
    cache_write: Price | None = None


class Model(_Section):
    """A catalogue entry. Prices may be empty: usage is then recorded and costs nothing."""

    name: Name
    pool: Name
    aliases: tuple[Name, ...] = ()
    context_length: Annotated[int, Meta(ge=1)] | None = None
    apis: tuple[Literal["chat", "completions", "embeddings"], ...] = ("chat", "completions")
    prices: tuple[PriceVersion, ...] = ()
    owned_by: str = "forebay"


class LocalEngines(_Section):
    """What `forebay up` runs beside the platform when no pool is configured."""

    replicas: Annotated[int, Meta(ge=1, le=16)] = 2
    first_port: Annotated[int, Meta(ge=1024, le=65_000)] = 9101
    kv_cache_gib: Annotated[int, Meta(ge=1, le=64)] = 1


class Config(_Section):
    api_version: Literal["forebay.dev/v1"] = "forebay.dev/v1"
    server: Server = field(default_factory=Server)
    timeouts: Timeouts = field(default_factory=Timeouts)
    stores: Stores = field(default_factory=Stores)
    secrets: Secrets = field(default_factory=Secrets)
    currency: Annotated[str, Meta(pattern="^[A-Z]{3}$")] = "USD"
    pools: tuple[Pool, ...] = ()
    models: tuple[Model, ...] = ()
    local: LocalEngines = field(default_factory=LocalEngines)
