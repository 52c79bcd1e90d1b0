"""Engines' pods, as the Kubernetes API tells of them, as endpoints (pure).

An EndpointSlice says how a pod is reached and whether it is ready; the pod itself says what it is, and first that it is
going: a slice may call it ready for some time after that.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from forebay.router.endpoints import EndpointSpec
from forebay.router.routing import Group, Role

NO_ADDRESS, NO_POD = "has no address yet", "is in the service, and its pod is not known"
PASSING = (NO_ADDRESS, NO_POD)  # reasons that every pod has for a moment, when it comes or goes


class Metadata(Struct, frozen=True, rename="camel"):
    name: str
    uid: str = ""
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class ContainerPort(Struct, frozen=True, rename="camel"):
    container_port: int
    name: str = ""


class Container(Struct, frozen=True):
    ports: list[ContainerPort] | None = None


class PodSpec(Struct, frozen=True):
    containers: list[Container] | None = None


class PodCondition(Struct, frozen=True):
    type: str
    status: str


class PodStatus(Struct, frozen=True):
    phase: str = ""
    ip: str = field(default="", name="podIP")
    conditions: list[PodCondition] | None = None


class Pod(Struct, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ready(self) -> bool:
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions or ())

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}


class Conditions(Struct, frozen=True):
    """What is not said counts as yes for `ready`, and as no for `terminating`."""

    ready: bool | None = None
    terminating: bool | None = None


class Target(Struct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class SliceEndpoint(Struct, frozen=True, rename="camel"):
    addresses: list[str]
    conditions: Conditions = Conditions()
    target_ref: Target | None = None


class SlicePort(Struct, frozen=True):
    name: str | None = None
    port: int | None = None


class Slice(Struct, frozen=True, rename="camel"):
    metadata: Metadata
    address_type: str = "IPv4"
    endpoints: list[SliceEndpoint] | None = None
    ports: list[SlicePort] | None = None


class Labels(Struct, frozen=True):
    """Names of the pod labels that say what an engine is. `drain`: it is sent nothing new while that is "true"."""

    role: str
    revision: str
    accelerator: str
    drain: str


class Rules(Struct, frozen=True):
    """How a pod becomes endpoints. Ports are numbers, or names of the service's or the container's ports; `events` and
    `replay` are empty where engines publish none. `ranks`: data-parallel ranks behind one port."""

    port: str
    labels: Labels
    engine: str
    served_model: str
    scheme: str = "http"
    api_key: str | None = None
    priority_scheduling: bool = False
    events: str = ""
    replay: str = ""
    ranks: int = 1


class Found(Struct, frozen=True):
    """`left_out`: why pods are no endpoints, by name."""

    specs: tuple[EndpointSpec, ...]
    left_out: dict[str, str]


class Place(Struct, frozen=True):
    """Where a pod is reached, and whether it wants requests."""

    address: str
    ready: bool
    terminating: bool
    ports: dict[str, int]


def found(pods: Mapping[str, Pod], slices: Iterable[Slice] | None, rules: Rules) -> Found:
    """The endpoints of these pods, in the order of their names: of all, or with `slices` of those that are in one."""
    places, left_out = _alone(pods) if slices is None else _placed(pods, slices)
    specs: list[EndpointSpec] = []
    for name, place in sorted(places.items()):
        try:
            specs += _specs(pods[name], place, rules)
        except ValueError as error:
            left_out[name] = str(error)
    return Found(tuple(specs), left_out)


def _alone(pods: Mapping[str, Pod]) -> tuple[dict[str, Place], dict[str, str]]:
    """By what the pods themselves say."""
    live = {name: pod for name, pod in pods.items() if pod.status.phase not in ("Succeeded", "Failed")}
    places = {name: Place(pod.status.ip, pod.ready, terminating=False, ports={}) for name, pod in live.items()}
    return {name: place for name, place in places.items() if place.address}, {
        name: NO_ADDRESS for name, place in places.items() if not place.address
    }


def _placed(pods: Mapping[str, Pod], slices: Iterable[Slice]) -> tuple[dict[str, Place], dict[str, str]]:
    places: dict[str, Place] = {}
    left_out: dict[str, str] = {}
    for one in sorted(slices, key=lambda one: (one.address_type, one.metadata.name)):
        ports = {port.name or "": port.port for port in one.ports or () if port.port is not None}
        for endpoint in one.endpoints or ():
            target = endpoint.target_ref
            if target is None or target.kind != "Pod" or not endpoint.addresses or one.address_type == "FQDN":
                left_out[", ".join(endpoint.addresses)] = "is not a pod"
                continue
            pod = pods.get(target.name)
            if pod is None or (target.uid and pod.metadata.uid and target.uid != pod.metadata.uid):
                left_out[target.name] = NO_POD
                continue
            terminating = endpoint.conditions.terminating is True
            place = Place(endpoint.addresses[0], endpoint.conditions.ready is not False, terminating, ports)
            known = places.get(target.name)  # in two slices, for two families or for the time in which it moves
            places[target.name] = place if known is None else _together(known, place)
    return places, {name: why for name, why in left_out.items() if name not in places}


def _together(first: Place, other: Place) -> Place:
    ready, terminating = first.ready or other.ready, first.terminating or other.terminating
    return Place(first.address, ready, terminating, other.ports | first.ports)


def _specs(pod: Pod, place: Place, rules: Rules) -> list[EndpointSpec]:
    """Raises `ValueError` for a pod that cannot be reached, or not placed."""
    host = f"[{place.address}]" if ":" in place.address else place.address
    port = _port(rules.port, pod, place)
    events, replay = (_port(name, pod, place) if name else None for name in (rules.events, rules.replay))
    group, draining = _group(pod, rules.labels), _draining(pod, place, rules.labels)
    return [
        EndpointSpec(
            name=pod.metadata.name if rules.ranks == 1 else f"{pod.metadata.name}/{rank}",
            url=f"{rules.scheme}://{host}:{port}",
            engine=rules.engine,
            served_model=rules.served_model,
            api_key=rules.api_key,
            priority_scheduling=rules.priority_scheduling,
            events=None if events is None else f"tcp://{host}:{events + rank}",
            replay=None if replay is None else f"tcp://{host}:{replay + rank}",
            rank=None if rules.ranks == 1 else rank,
            draining=draining,
            instance=pod.metadata.uid,
            group=group,
        )
        for rank in range(rules.ranks)
    ]


def _port(wanted: str, pod: Pod, place: Place) -> int:
    """Raises `ValueError` where none has that name."""
    if wanted.isdigit():
        if not 0 < int(wanted) < 1 << 16:
            raise ValueError(f"cannot have the port {wanted}")
        return int(wanted)
    if wanted in place.ports:
        return place.ports[wanted]
    for container in pod.spec.containers or ():
        for port in container.ports or ():
            if port.name == wanted:
                return port.container_port
    raise ValueError(f"has no port named {wanted}")


def _group(pod: Pod, names: Labels) -> Group:
    role = pod.labels.get(names.role) or Role.UNIFIED
    if role not in list(Role):
        raise ValueError(f"has the label {names.role}={role}, which is none of {', '.join(Role)}")
    return Group(Role(role), pod.labels.get(names.revision, ""), pod.labels.get(names.accelerator, ""))


def _draining(pod: Pod, place: Place, names: Labels) -> str:
    """Why it is sent nothing new. That the pod is going counts whatever else is said."""
    if pod.metadata.deletion_timestamp is not None or place.terminating:
        return "its pod is terminating"
    if pod.labels.get(names.drain) == "true":
        return f"its pod has the label {names.drain}"
    return "" if place.ready else "its pod is not ready"
