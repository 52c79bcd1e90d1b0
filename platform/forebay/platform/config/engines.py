"""`pools:` of the configuration: engine servers, listed or found."""

from typing import Annotated, Literal

from msgspec import Meta, field

from forebay.platform.config.words import (
    DnsName,
    EnvName,
    Label,
    LabelName,
    Name,
    Port,
    Seconds,
    Section,
    Selector,
    Text,
    Url,
    ZmqAddress,
)


class Endpoint(Section, frozen=True):
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


class PodLabels(Section, frozen=True):
    """Names of the pod labels that say what an engine is."""

    role: Annotated[
        LabelName, Meta(description="`unified`, which is also what a pod without it is, `prefill` or `decode`.")
    ] = "forebay.dev/role"
    revision: Annotated[LabelName, Meta(description="Which rollout it belongs to.")] = "forebay.dev/revision"
    accelerator: Annotated[LabelName, Meta(description="What it runs on.")] = "forebay.dev/accelerator"
    drain: Annotated[
        LabelName, Meta(description='While it is "true", the pod is sent nothing new.')
    ] = "forebay.dev/drain"


class Kubernetes(Section, frozen=True):
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


class LocalProcesses(Section, frozen=True):
    """Engines that run on this machine, each announced by a file while it does."""

    directory: Annotated[
        Text | None, Meta(description="Directory of the files; unset, `run/engines/POOL` in `stateDir`.")
    ] = None
    api_key_env: Annotated[EnvName | None, Meta(description="As in `endpoints`, for all of them.")] = None


class Discovery(Section, frozen=True):
    """Engines that are found instead of listed: in one of these ways."""

    kubernetes: Annotated[Kubernetes | None, Meta(description="Pods of a service, or of a selector.")] = None
    local: Annotated[LocalProcesses | None, Meta(description="Processes of this machine; `{}` will do.")] = None


class Pool(Section, frozen=True):
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
