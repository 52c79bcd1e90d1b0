"""`forebay.yaml`, apiVersion forebay.dev/v1, as typed structs. Keys are camelCase on disk, snake_case here.

Every key's description is written here once: the JSON Schema, the reference in docs/ and `config check` read it.
`extra` carries what only they need: `expects` says what a right value looks like, `private` keeps values out of faults.
"""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from forebay.platform.config.redact import redact

Name = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}$", extra={"expects": "1 to 128 letters, digits or ._/:-"})
]
Url = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^\s/]+[^\s]*$",
        examples=["http://10.0.0.5:8000"],
        extra={"expects": "an http:// or https:// URL such as http://10.0.0.5:8000"},
    ),
]
ZmqAddress = Annotated[
    str,
    Meta(
        pattern=r"^(tcp://[^\s/*]+:[0-9]{1,5}|ipc://\S+)$",
        extra={"expects": "a ZeroMQ address to connect to, such as tcp://10.0.0.5:5557"},
    ),
]
EnvName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Z_][A-Z0-9_]{0,63}$",
        examples=["ENGINE_API_KEY"],
        extra={"expects": "the name of an environment variable (A-Z, 0-9, _), never the key itself", "private": True},
    ),
]
Text = Annotated[str, Meta(min_length=1)]
Label = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9._/:-]{0,63}$", extra={"expects": "up to 63 letters, digits or ._/:-"})
]
LabelName = Annotated[
    str,
    Meta(
        pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$",
        extra={"expects": "the name of a label such as forebay.dev/role"},
    ),
]
DnsName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        extra={"expects": "up to 63 small letters, digits or -"},
    ),
]
Port = Annotated[
    str,
    Meta(
        pattern=r"^([1-9][0-9]{0,4}|[a-z0-9-]*[a-z][a-z0-9-]*)$",
        extra_json_schema={"type": ["string", "integer"]},
        extra={"expects": "a port's number or name"},
    ),
]
_KEY = r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_REQUIREMENT = rf"(!?{_KEY}|{_KEY} *(==?|!=) *[A-Za-z0-9._-]{{0,63}}|{_KEY} +(not)?in +\([A-Za-z0-9._, -]*\))"
Selector = Annotated[
    str,
    Meta(
        pattern=rf"^ *{_REQUIREMENT}( *, *{_REQUIREMENT})* *$",
        extra={"expects": "a label selector such as app=chat-engine,forebay.dev/role in (unified)"},
    ),
]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Price = Annotated[
    Decimal, Meta(extra_json_schema={"pattern": r"^[0-9]{1,9}(\.[0-9]{1,12})?$", "minimum": 0, "maximum": 999_999_999})
]
Instant = Annotated[datetime, Meta(tz=True)]


class _Section(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    pass


class Server(_Section, frozen=True):
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
    drain_timeout: Annotated[
        Seconds, Meta(description="Seconds that running requests get to finish when the front door stops.")
    ] = 30.0
    workers: Annotated[
        int,
        Meta(ge=1, le=64, description="Processes that serve requests; beyond 1, a router process runs beside them."),
    ] = 1


class Router(_Section, frozen=True):
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


class Timeouts(_Section, frozen=True):
    """Bounds on waiting for an engine, in seconds."""

    connect: Annotated[Seconds, Meta(description="Seconds to open a connection to an engine.")] = 2.0
    queue: Annotated[
        Seconds, Meta(description="Seconds that a request may wait in the router until an engine has room for it.")
    ] = 60.0
    first_byte: Annotated[
        Seconds, Meta(description="Seconds from there until the engine's first byte, its own queue included.")
    ] = 300.0
    idle: Annotated[Seconds, Meta(description="Seconds between two pieces of a stream.")] = 120.0
    total: Annotated[Seconds, Meta(description="Seconds for one attempt from dispatch to its end.")] = 3600.0
    heartbeat_after: Annotated[
        Seconds, Meta(description="Seconds of silence after which a stream is answered 200 and kept alive by comments.")
    ] = 10.0


class Stores(_Section, frozen=True):
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


class Secrets(_Section, frozen=True):
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


class Endpoint(_Section, frozen=True):
    """One engine server."""

    url: Annotated[Url, Meta(description="Base URL, without /v1.")]
    name: Annotated[
        Name | None, Meta(description="Name in metrics and usage records; unset, its URL without the scheme.")
    ] = None
    engine: Annotated[
        Literal["vllm", "openai"],
        Meta(description="Which engine answers; `openai` is any OpenAI-compatible server."),
    ] = "vllm"
    served_model: Annotated[
        Text | None,
        Meta(description="The engine's own name for the model; unset, the name of the pool's first model."),
    ] = None
    api_key_env: Annotated[
        EnvName | None, Meta(description="Environment variable that holds the engine's own key.")
    ] = None
    priority_scheduling: Annotated[
        bool, Meta(description="The engine runs with --scheduling-policy priority.")
    ] = False
    kv_events: Annotated[
        ZmqAddress | None,
        Meta(
            description="Where the engine publishes its KV events; unset, its cache is guessed from what it was sent.",
            examples=["tcp://10.0.0.5:5557"],
        ),
    ] = None
    kv_replay: Annotated[
        ZmqAddress | None,
        Meta(description="Where it repeats events that were missed.", examples=["tcp://10.0.0.5:5558"]),
    ] = None
    data_parallel_ranks: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="Data-parallel ranks behind the URL, each with a cache of its own; a rank's KV events come "
            "from the port of rank 0 plus its number.",
        ),
    ] = 1

    role: Annotated[
        Literal["unified", "prefill", "decode"],
        Meta(description="What it does of a request. Requests are placed on `unified` endpoints only, so far."),
    ] = "unified"
    revision: Annotated[
        Label, Meta(description="Which rollout of the pool it belongs to, as metrics show it.")
    ] = ""
    accelerator: Annotated[
        Label, Meta(description="What it runs on, as metrics show it.", examples=["h200"])
    ] = ""

    @property
    def called(self) -> str:
        return self.name or default_name(self.url)


def default_name(url: str) -> str:
    """What an endpoint without a name is called."""
    return url.split("://", 1)[1].rstrip("/")


class Announced(Endpoint, frozen=True, kw_only=True):
    """An engine of this machine, as its file in the directory of `discovery.local` says it."""

    pid: Annotated[int, Meta(ge=1, lt=1 << 31, description="Its process. The engine is out when that has ended.")]
    drain: Annotated[bool, Meta(description="Whether it is sent nothing new.")] = False
    life: Annotated[
        str, Meta(max_length=100, description="Which process of that number; `forebay announce` says it.")
    ] = ""


class PodLabels(_Section, frozen=True):
    """Names of the pod labels that say what an engine is."""

    role: Annotated[
        LabelName, Meta(description="`unified`, which is also what a pod without it is, `prefill` or `decode`.")
    ] = "forebay.dev/role"
    revision: Annotated[LabelName, Meta(description="Which rollout it belongs to.")] = "forebay.dev/revision"
    accelerator: Annotated[LabelName, Meta(description="What it runs on.")] = "forebay.dev/accelerator"
    drain: Annotated[
        LabelName, Meta(description='While it is "true", the pod is sent nothing new.')
    ] = "forebay.dev/drain"


class Kubernetes(_Section, frozen=True):
    """Engines that run in pods, followed as they come and go. The options of an endpoint hold for each of them."""

    namespace: Annotated[
        DnsName | None, Meta(description="Namespace of the pods; unset, the one that Forebay runs in.")
    ] = None
    service: Annotated[
        DnsName | None,
        Meta(description="Service whose EndpointSlices say how its pods are reached, and whether they are ready."),
    ] = None
    selector: Annotated[
        Selector | None,
        Meta(
            description="Label selector of the pods. Without `service` it finds them; with it, it spares the other "
            "pods of the namespace from being followed.",
            examples=["app=chat-engine"],
        ),
    ] = None
    port: Annotated[Port, Meta(description="Where engines answer: a number, or a port's name.")] = "8000"
    scheme: Annotated[Literal["http", "https"], Meta(description="How they are spoken to.")] = "http"
    engine: Annotated[Literal["vllm", "openai"], Meta(description="As in `endpoints`.")] = "vllm"
    served_model: Annotated[Text | None, Meta(description="As in `endpoints`.")] = None
    api_key_env: Annotated[EnvName | None, Meta(description="As in `endpoints`.")] = None
    priority_scheduling: Annotated[bool, Meta(description="As in `endpoints`.")] = False
    kv_events_port: Annotated[
        Port | None, Meta(description="Where engines publish their KV events: a number, or a port's name.")
    ] = None
    kv_replay_port: Annotated[Port | None, Meta(description="Where they repeat events that were missed.")] = None
    data_parallel_ranks: Annotated[int, Meta(ge=1, le=1024, description="As in `endpoints`.")] = 1
    pod_labels: Annotated[PodLabels, Meta(description="Labels that are read.")] = field(
        default_factory=PodLabels
    )


class LocalProcesses(_Section, frozen=True):
    """Engines that run on this machine, each announced by a file while it does."""

    directory: Annotated[
        Text | None, Meta(description="Directory of the files; unset, `run/engines/POOL` in `stateDir`.")
    ] = None
    api_key_env: Annotated[EnvName | None, Meta(description="As in `endpoints`, for all of them.")] = None


class Discovery(_Section, frozen=True):
    """Engines that are found instead of listed: in one of these ways."""

    kubernetes: Annotated[Kubernetes | None, Meta(description="Pods of a service, or of a selector.")] = None
    local: Annotated[LocalProcesses | None, Meta(description="Processes of this machine; `{}` will do.")] = None


class Pool(_Section, frozen=True):
    """The engine replicas of one model."""

    name: Annotated[Name, Meta(description="Name that models refer to.")]
    endpoints: Annotated[
        tuple[Endpoint, ...],
        Meta(
            description="Its engine servers. A pool has some, or `discovery`, or both.",
            extra_json_schema={"minItems": 1},
        ),
    ] = ()
    discovery: Annotated[
        Discovery | None, Meta(description="Where further engine servers are found; see discovery.md.")
    ] = None
    drain_grace: Annotated[
        Seconds,
        Meta(
            description="Seconds that answers may still take at an endpoint which drains; then they are continued "
            "elsewhere, where that is possible. Less than what the engine is given to end."
        ),
    ] = 20.0


class PriceVersion(_Section, frozen=True):
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


class Model(_Section, frozen=True):
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


class LocalEngines(_Section, frozen=True):
    """What `forebay up` runs beside the platform when no pool is configured."""

    replicas: Annotated[int, Meta(ge=1, le=16, description="Engines to start.")] = 2
    first_port: Annotated[
        int, Meta(ge=1024, le=65_000, description="First port for engines; those that are taken are stepped over.")
    ] = 9101
    kv_cache_gib: Annotated[int, Meta(ge=1, le=64, description="GiB of memory for each engine's KV cache.")] = 1


class Config(_Section, frozen=True):
    """The configuration of a Forebay front door."""

    api_version: Annotated[Literal["forebay.dev/v1"], Meta(description="Version of this format.")] = "forebay.dev/v1"
    server: Annotated[Server, Meta(description="The front door's own socket and bounds.")] = field(
        default_factory=Server
    )
    timeouts: Annotated[Timeouts, Meta(description="Bounds on waiting for an engine.")] = field(
        default_factory=Timeouts
    )
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

    def served_model(self, pool: Pool, endpoint: Endpoint | Kubernetes) -> str:
        """What the endpoint is asked for: its own `servedModel`, else the pool's first model."""
        return endpoint.served_model or next((model.name for model in self.models if model.pool == pool.name), "")
