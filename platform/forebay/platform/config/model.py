"""`forebay.yaml`, apiVersion forebay.dev/v1, as typed structs. Keys are camelCase on disk, snake_case here.

Every key's description is written once, here or beside this module: the JSON Schema, the reference in docs/ and `config
check` read it.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from forebay.platform.config.engines import Endpoint, Kubernetes, Pool
from forebay.platform.config.redact import redact
from forebay.platform.config.stripe import Stripe
from forebay.platform.config.tiers import Tier
from forebay.platform.config.words import Instant, Name, Price, Seconds, Section, Text, Url


class Server(Section, frozen=True):
    """The front door's own socket and bounds."""

    host: Annotated[Text, Meta(description="Address to listen on; 0.0.0.0 for every interface.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="TCP port; 0 picks a free one.")] = 8080
    body_limit: Annotated[
        int, Meta(ge=1024, le=1 << 30, description="Largest request body in bytes; beyond it the answer is 413.")
    ] = 32 << 20
    max_in_flight: Annotated[
        int, Meta(ge=1, le=100_000, description="Requests served at once; beyond it the answer is 503.")
    ] = 4096
    max_in_flight_per_project: Annotated[
        int, Meta(ge=1, le=100_000, description="Requests of one project served at once; beyond it the answer is 429.")
    ] = 512
    max_clients: Annotated[
        int, Meta(ge=256, le=1 << 20, description="Connections of clients at once, as far as there are files for them.")
    ] = 1 << 16
    memory: Annotated[
        int, Meta(ge=1, description="Bytes of bodies and of whole answers held at once; beyond it a 503.")
    ] = 1 << 30
    memory_per_project: Annotated[
        int, Meta(ge=1, description="The same of one project; beyond it a 429. One largest body always fits.")
    ] = 1 << 28
    send_buffer: Annotated[
        int, Meta(ge=4096, le=1 << 26, description="Bytes of an answer that the kernel holds for a slow reader.")
    ] = 1 << 17
    stall_timeout: Annotated[
        Seconds, Meta(description="Seconds that a tenant may leave its socket full; then the request is given up.")
    ] = 60.0
    drain_timeout: Annotated[
        Seconds, Meta(description="Seconds that running requests get to finish when the front door stops.")
    ] = 30.0
    workers: Annotated[
        int,
        Meta(ge=1, le=64, description="Processes that serve requests; beyond 1, a router process runs beside them."),
    ] = 1


class Router(Section, frozen=True):
    """What the router may remember, and whom it asks when it starts."""

    peers: Annotated[
        tuple[Url, ...], Meta(description="Other front doors over the same pools, asked for their index at the start.")
    ] = ()
    warm_start_timeout: Annotated[
        Seconds, Meta(description="Seconds that a start waits for peers and engines to tell what is cached.")
    ] = 10.0
    share_load: Annotated[
        bool, Meta(description="Tell other front doors through Valkey what is booked here, and reckon with theirs.")
    ] = True
    blocks_per_endpoint: Annotated[
        int, Meta(ge=1024, le=1 << 26, description="KV-cache blocks remembered of one endpoint; the newest stay.")
    ] = 1 << 20
    prompt_memory_bytes: Annotated[
        int, Meta(ge=1 << 20, description="Bytes of prompts remembered by each worker, so that no turn is read twice.")
    ] = 512 << 20
    prompt_memory_bytes_per_project: Annotated[
        int, Meta(ge=1 << 20, description="Bytes of remembered prompts of one project in each worker.")
    ] = 128 << 20


class Timeouts(Section, frozen=True):
    """Bounds on waiting for an engine, in seconds."""

    connect: Annotated[Seconds, Meta(description="Seconds to open a connection to an engine.")] = 2.0
    queue: Annotated[
        Seconds, Meta(description="Seconds that a request may wait in the router until an engine has room for it.")
    ] = 60.0
    first_byte: Annotated[
        Seconds,
        Meta(
            description="Seconds that engines may take for an answer's first byte, their own queues included: of a "
            "request, all its attempts together."
        ),
    ] = 300.0
    idle: Annotated[
        Seconds, Meta(description="Seconds that an engine may be silent in a stream; then another one goes on with it.")
    ] = 120.0
    total: Annotated[
        Seconds, Meta(description="Seconds that a request may take in all: waits, attempts, and its answer's end.")
    ] = 3600.0
    heartbeat_after: Annotated[
        Seconds, Meta(description="Seconds of silence after which a stream is answered 200 and kept alive by comments.")
    ] = 10.0


class Stores(Section, frozen=True):
    """Where Forebay keeps what it knows.

    `embedded` runs Postgres and Valkey from wheels inside `stateDir`; otherwise a URL. URLs may hold `${NAME}`, read
    from the environment, so that passwords stay out of the file.
    """

    postgres: Annotated[
        Text,
        Meta(
            description="`embedded` or a postgresql:// URL: tenants, keys and the ledger.",
            examples=["postgresql://forebay:${PGPASSWORD}@db.internal:5432/forebay"],
            extra={"private": True},
        ),
    ] = "embedded"
    valkey: Annotated[
        Text,
        Meta(
            description="`embedded` or a valkey:// URL (valkeys:// for TLS): what replicas share for a moment.",
            examples=["valkeys://:${VALKEY_PASSWORD}@cache.internal:6379/0"],
            extra={"private": True},
        ),
    ] = "embedded"
    state_dir: Annotated[
        Text,
        Meta(description="Directory of spool, created secrets and embedded stores; relative to where Forebay starts."),
    ] = ".forebay"
    spool_limit_bytes: Annotated[
        int, Meta(ge=1 << 20, description="Bytes of usage records kept locally while Postgres is away.")
    ] = 4 << 30
    checkpoint_every: Annotated[
        Seconds, Meta(description="Seconds between checkpoints of a running attempt's usage.")
    ] = 1.0
    key_cache_staleness: Annotated[
        Seconds, Meta(description="Seconds for which known keys are honoured while Postgres is away.")
    ] = 300.0

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        values = [(name, getattr(self, name)) for name in self.__struct_fields__]
        return [(name, redact(value) if isinstance(value, str) else value) for name, value in values]

    def __repr__(self) -> str:
        return f"Stores({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class Secrets(Section, frozen=True):
    """Files with one secret a line in the form `id:base64`, newest first. Unset, they are created under `stateDir`."""

    key_hash: Annotated[
        Text | None,
        Meta(
            description="File of secrets that hash API keys: new keys under the first, known keys under any.",
            extra={"private": True},
        ),
    ] = None
    cache_salt: Annotated[
        Text | None,
        Meta(
            description="File of secrets whose first derives the salt of each project's prefix cache.",
            extra={"private": True},
        ),
    ] = None


class PriceVersion(Section, frozen=True):
    """Prices per million tokens, as decimal strings. Immutable once used; a new price is a new version."""

    version: Annotated[Name, Meta(description="Name of this version, unique in its model; usage records carry it.")]
    effective_from: Annotated[
        Instant,
        Meta(
            description="Instant with a time zone from which it applies, until the next version does.",
            examples=["2026-01-01T00:00:00Z"],
        ),
    ]
    input: Annotated[Price, Meta(description="A million uncached input tokens.", examples=["0.15"])]
    output: Annotated[Price, Meta(description="A million output tokens, reasoning included.", examples=["0.60"])]
    cache_read: Annotated[
        Price | None, Meta(description="A million input tokens found in the cache; unset, the input price.")
    ] = None
    cache_write: Annotated[
        Price | None, Meta(description="A million input tokens written to the cache; unset, the input price.")
    ] = None


class Model(Section, frozen=True):
    """A catalogue entry."""

    name: Annotated[Name, Meta(description="Public name, as tenants write it in `model`.")]
    pool: Annotated[Name, Meta(description="Name of the pool that serves it.")]
    aliases: Annotated[
        tuple[Name, ...], Meta(description="Further public names. Names and aliases are unique across all models.")
    ] = ()
    context_length: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Tokens of input and output together, as the list of models says; unset, the engine's."),
    ] = None
    tokenizer: Annotated[
        Text | None,
        Meta(
            description="Directory of the model's `tokenizer.json`, `tokenizer_config.json` and chat template, as "
            "its engines use them. Unset, the engine is asked to tokenize, or tokens are guessed from bytes."
        ),
    ] = None
    chat_template: Annotated[
        Text | None, Meta(description="File of the chat template, where engines run with another than the tokenizer's.")
    ] = None
    apis: Annotated[
        tuple[Literal["chat", "completions", "embeddings"], ...], Meta(min_length=1, description="APIs it answers.")
    ] = ("chat", "completions")
    prices: Annotated[
        tuple[PriceVersion, ...], Meta(description="Price versions; none: usage is recorded and costs nothing.")
    ] = ()
    owned_by: Annotated[Text, Meta(description="`owned_by` in the list of models.")] = "forebay"


class LocalEngines(Section, frozen=True):
    """What `forebay up` runs beside the platform when no pool is configured."""

    replicas: Annotated[int, Meta(ge=1, le=16, description="Engines to start.")] = 2
    first_port: Annotated[
        int, Meta(ge=1024, le=65_000, description="First port for engines; those that are taken are stepped over.")
    ] = 9101
    kv_cache_gib: Annotated[int, Meta(ge=1, le=64, description="GiB of memory for each engine's KV cache.")] = 1


class Config(Section, frozen=True):
    """The configuration of a Forebay front door."""

    api_version: Annotated[Literal["forebay.dev/v1"], Meta(description="Version of this format.")] = "forebay.dev/v1"
    server: Annotated[Server, Meta(description="The front door's own socket and bounds.")] = field(
        default_factory=Server
    )
    timeouts: Annotated[Timeouts, Meta(description="Bounds on waiting for an engine.")] = field(
        default_factory=Timeouts
    )
    tiers: Annotated[
        tuple[Tier, ...],
        Meta(description="Tiers of service; none: one, called `default`, which waits for `timeouts.queue`."),
    ] = ()
    stores: Annotated[Stores, Meta(description="Postgres, Valkey and local state.")] = field(
        default_factory=Stores
    )
    secrets: Annotated[Secrets, Meta(description="Files of secrets.")] = field(
        default_factory=Secrets
    )
    router: Annotated[Router, Meta(description="The router's memory and its peers.")] = field(
        default_factory=Router
    )
    currency: Annotated[
        str,
        Meta(
            pattern="^[A-Z]{3}$",
            description="ISO 4217 code of all prices.",
            extra={"expects": "three capital letters such as USD"},
        ),
    ] = "USD"
    pools: Annotated[tuple[Pool, ...], Meta(description="Engine replicas, by pool.")] = ()
    models: Annotated[tuple[Model, ...], Meta(description="The catalogue.")] = ()
    local: Annotated[LocalEngines, Meta(description="Engines that `forebay up` starts.")] = field(
        default_factory=LocalEngines
    )
    stripe: Annotated[Stripe | None, Meta(description="Usage told to Stripe; unset, it is told nothing.")] = None

    def served_model(self, pool: Pool, endpoint: Endpoint | Kubernetes) -> str:
        """What the endpoint is asked for: its own `servedModel`, else the pool's first model."""
        return endpoint.served_model or next((model.name for model in self.models if model.pool == pool.name), "")
