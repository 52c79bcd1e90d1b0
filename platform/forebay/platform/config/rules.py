"""What must hold between the values of a configuration, beyond each value's own type.

Every rule takes the decoded data, in which None is a value that is absent or was faulty, and adds to the report.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from forebay.platform.config import tier_rules, urls
from forebay.platform.config.engines import default_name
from forebay.platform.config.faults import Path, Report, show
from forebay.platform.config.nearest import meant

Data = dict[str, Any]


def judge(data: Data, report: Report, environ: Mapping[str, str]) -> None:
    """Every rule, in the order of the document."""
    limits(data["server"], report)
    memory(data["router"], report)
    timeouts(data["timeouts"], report)
    tiers(data, report)
    urls.stores(data["stores"], report, environ)
    pools(data, report, environ)
    catalogue(data, report)
    shared_pools(data, report)
    for i, model in items(data["models"]):
        prices(model, ("models", i), report)


def limits(server: Data | None, report: Report) -> None:
    if server and _over(server["maxInFlightPerProject"], server["maxInFlight"]):
        project, everyone = server["maxInFlightPerProject"], server["maxInFlight"]
        path = report.given(("server", "maxInFlightPerProject"), ("server", "maxInFlight"))
        problem = f"maxInFlightPerProject ({project}) exceeds maxInFlight ({everyone})"
        report.fault(path, problem, f"set maxInFlightPerProject to at most {everyone}")
    if server and _over(server["maxInFlight"], server["maxClients"]):
        path = report.given(("server", "maxClients"), ("server", "maxInFlight"))
        problem = f"maxClients ({server['maxClients']}) is less than maxInFlight ({server['maxInFlight']})"
        report.fault(path, problem, "each request in flight has a connection: raise maxClients")
    if server and _over(server["memoryPerProject"], server["memory"]):
        path = report.given(("server", "memoryPerProject"), ("server", "memory"))
        report.fault(path, "memoryPerProject exceeds memory", f"set it to at most {server['memory']}")


def memory(router: Data | None, report: Report) -> None:
    if router and _over(router["promptMemoryBytesPerProject"], router["promptMemoryBytes"]):
        path = report.given(("router", "promptMemoryBytesPerProject"), ("router", "promptMemoryBytes"))
        problem = "promptMemoryBytesPerProject exceeds promptMemoryBytes"
        report.fault(path, problem, f"set it to at most {router['promptMemoryBytes']}")


def timeouts(given: Data | None, report: Report) -> None:
    orders = [
        ("connect", "firstByte", False, "connecting is a part of it"),
        ("firstByte", "total", True, "total bounds the whole request"),
        ("idle", "total", True, "total bounds the whole request"),
        ("queue", "total", True, "total bounds the whole request"),
    ]
    for low, high, equal, why in orders if given else []:
        assert given is not None
        below, above = given[low], given[high]
        if _over(below, above) or (not equal and below is not None and below == above):
            path = report.given(("timeouts", low), ("timeouts", high))
            problem = f"{low} ({below:g} s) is not {'within' if equal else 'below'} {high} ({above:g} s)"
            report.fault(path, problem, f"lower {low} or raise {high}: {why}")
    if given and _over(given["heartbeatAfter"], given["firstByte"]):
        path = report.given(("timeouts", "heartbeatAfter"), ("timeouts", "firstByte"))
        problem = f"no heartbeat is ever sent before firstByte ({given['firstByte']:g} s) ends the wait"
        report.fault(path, problem, "set heartbeatAfter below firstByte", warning=True)


def tiers(data: Data, report: Report) -> None:
    placed: list[tuple[Path, Data]] = [(("tiers", i), tier) for i, tier in items(data["tiers"])]
    unique(report, (((*path, "name"), tier["name"]) for path, tier in placed), "tier")
    tier_rules.tiers(placed, data["timeouts"], report)


def pools(data: Data, report: Report, environ: Mapping[str, str]) -> None:
    unique(report, ((("pools", i, "name"), pool["name"]) for i, pool in items(data["pools"])), "pool")
    for i, pool in items(data["pools"]):
        for j, endpoint in items(pool["endpoints"]):
            engine(endpoint, ("pools", i, "endpoints", j), report, environ)
        here = [(("pools", i, "endpoints", j), endpoint) for j, endpoint in items(pool["endpoints"])]
        unique(report, (((*path, "url"), endpoint["url"]) for path, endpoint in here), "URL")
        first = {endpoint["url"]: path for path, endpoint in reversed(here)}
        named = [(path, endpoint) for path, endpoint in here if endpoint["name"] or first[endpoint["url"]] == path]
        unique(report, (((*path, "name"), _called(endpoint)) for path, endpoint in named), "endpoint")
        _sources(pool, ("pools", i), report, environ)
    directories = [
        (("pools", i, "discovery", "local", "directory"), local["directory"])
        for i, pool in items(data["pools"]) if (local := (pool["discovery"] or {}).get("local"))
    ]  # fmt: skip
    unique(report, directories, "directory")


def engine(endpoint: Data, path: Path, report: Report, environ: Mapping[str, str]) -> None:
    """One engine server, listed or announced by itself."""
    urls.endpoint(endpoint, path, report)
    _engine_options(endpoint, path, report, environ)
    _event_options(endpoint, path, report)


def _sources(pool: Data, path: Path, report: Report, environ: Mapping[str, str]) -> None:
    """Where its endpoints are from."""
    discovery = pool["discovery"]
    if pool["endpoints"] == () and (*path, "discovery") not in report.lines:
        given = (*path, "endpoints") in report.lines
        problem, fix = ("is an empty list", "give at least 1") if given else ("is missing", "write a list")
        report.fault((*path, "endpoints"), problem, f"{fix}, or use discovery")
    if discovery is None:
        return
    path, found = (*path, "discovery"), discovery["kubernetes"]
    if found is None and discovery["local"] is None and not _faulty(report, path):
        fix = "write kubernetes with keys such as service, port, or local: {}"
        report.fault(path, "names no way to find engines", fix)
    if found is not None and discovery["local"] is not None:
        report.fault((*path, "local"), "stands beside kubernetes", "keep one of them, or make two pools")
    if found is not None:
        _kubernetes(found, (*path, "kubernetes"), report, environ)
    if discovery["local"] is not None:
        _key_option(discovery["local"], (*path, "local"), report, environ)


def _kubernetes(found: Data, path: Path, report: Report, environ: Mapping[str, str]) -> None:
    if found["service"] is None and found["selector"] is None and not _faulty(report, path):
        report.fault((*path, "service"), "is missing", "name the service of the engines, or give a selector")
    _engine_options(found, path, report, environ)
    _event_options(found, path, report, "kvEventsPort", "kvReplayPort")
    ports = [((*path, name), found[name]) for name in ("port", "kvEventsPort", "kvReplayPort")]
    unique(report, ports, "port")
    for at, port in ports:
        last = (found["dataParallelRanks"] or 1) - 1 if at[-1] != "port" else 0
        if str(port).isdigit() and int(port) + last > 65_535:
            of = f" for each of {last + 1} ranks" if last else ""
            report.fault(at, f"there is no port {port}{of}", f"write one of at most {65_535 - last}, or a port's name")
    labels = found["podLabels"] or {}
    unique(report, (((*path, "podLabels", name), label) for name, label in labels.items()), "label")


def _faulty(report: Report, path: Path) -> bool:
    """Whether something in it was wrong, and is absent for that."""
    return any(fault.path.startswith(show(path)) for fault in report.faults)


def _called(endpoint: Data) -> str | None:
    """An endpoint's name, or the one that it gets when it has none."""
    name: str | None = endpoint["name"] or (endpoint["url"] and default_name(endpoint["url"]))
    return name


def _key_option(options: Data, path: Path, report: Report, environ: Mapping[str, str]) -> None:
    variable = options["apiKeyEnv"]
    if variable and not environ.get(variable):
        fix = "set it where Forebay starts"
        report.fault((*path, "apiKeyEnv"), f"the variable {variable} is not set here", fix, warning=True)


def _engine_options(endpoint: Data, path: Path, report: Report, environ: Mapping[str, str]) -> None:
    _key_option(endpoint, path, report, environ)
    if endpoint["priorityScheduling"] and endpoint["engine"] == "openai":
        problem = "engine openai has no priorities"
        report.fault((*path, "priorityScheduling"), problem, "set engine to vllm, or remove the key")


def _event_options(
    endpoint: Data, path: Path, report: Report, of_events: str = "kvEvents", of_replay: str = "kvReplay"
) -> None:
    events, replay, openai = endpoint[of_events], endpoint[of_replay], endpoint["engine"] == "openai"
    if replay and not events:
        problem = f"{of_replay} without {of_events} has no effect"
        report.fault((*path, of_replay), problem, f"set {of_events}, or remove the key")
    if events and openai:
        problem = "engine openai is sent no cache salt, so that its events match no prompt"
        report.fault((*path, of_events), problem, "set engine to vllm, or remove the key")
    elif events and not replay:
        problem = f"without {of_replay}, what was cached before Forebay started or while events were lost stays unknown"
        report.fault((*path, of_events), problem, f"set {of_replay} to the engine's replay_endpoint", warning=True)
    if (endpoint["dataParallelRanks"] or 1) == 1:
        return
    if openai:
        problem = "engine openai cannot be told a data-parallel rank"
        report.fault((*path, "dataParallelRanks"), problem, "set engine to vllm, or remove the key")
    for name in (of_events, of_replay):
        if str(endpoint[name]).startswith("ipc:"):
            problem = "ranks beyond the first publish at ports, which an ipc:// address has none of"
            report.fault((*path, name), problem, "give a tcp:// address")


def catalogue(data: Data, report: Report) -> None:
    models = items(data["models"])
    names = [(("models", i, "name"), model["name"]) for i, model in models]
    aliases = [
        (("models", i, "aliases", j), alias) for i, model in models for j, alias in enumerate(model["aliases"] or ())
    ]
    unique(report, [*names, *aliases], "model name")
    known = [pool["name"] for _, pool in items(data["pools"])]
    sound = data["pools"] is not None and None not in known
    for i, model in models:
        unique(report, ((("models", i, "apis", j), api) for j, api in enumerate(model["apis"] or ())), "API")
        if sound and model["pool"] is not None and model["pool"] not in known:
            fix = f"the pools are {', '.join(known[:8])}" if known else "add it under pools"
            fix = meant(model["pool"], known) or fix
            report.fault(("models", i, "pool"), f"there is no pool '{model['pool']}'", fix)
    used = {model["pool"] for _, model in models}
    for i, pool in items(data["pools"]):
        if sound and pool["name"] not in used and used <= set(known):
            fix = "name it as the pool of a model, or remove it"
            report.fault(("pools", i), f"no model uses pool '{pool['name']}'", fix, warning=True)


def shared_pools(data: Data, report: Report) -> None:
    """Two models may share a pool, but an endpoint without servedModel is asked for the first of them only."""
    silent = {
        pool["name"]
        for _, pool in items(data["pools"])
        if not all(source["servedModel"] for source in _asked(pool))
    }
    first: dict[str, str] = {}
    for i, model in items(data["models"]):
        other = first.setdefault(model["pool"], model["name"])
        if model["pool"] in silent and other != model["name"]:
            problem = f"pool '{model['pool']}' is asked for model '{other}', so this one gets its answers"
            fix = "give it a pool of its own, make it an alias, or set servedModel at the pool's endpoints"
            report.fault(("models", i, "pool"), problem, fix, warning=True)


def _asked(pool: Data) -> list[Data]:
    """What says how its engines are asked for the model."""
    found = (pool["discovery"] or {}).get("kubernetes")
    return [endpoint for _, endpoint in items(pool["endpoints"])] + ([found] if found else [])


def prices(model: Data, path: Path, report: Report) -> None:
    versions = [((*path, "prices", i), version) for i, version in items(model["prices"])]
    unique(report, (((*at, "version"), version["version"]) for at, version in versions), "price version")
    unique(report, (((*at, "effectiveFrom"), version["effectiveFrom"]) for at, version in versions), "effective date")


def items(entries: Iterable[Data | None] | None) -> list[tuple[int, Data]]:
    """The sound entries of a list with their places."""
    return [(i, entry) for i, entry in enumerate(entries or ()) if entry is not None]


def unique(report: Report, pairs: Iterable[tuple[Path, Any]], what: str) -> None:
    seen: dict[Any, Path] = {}
    for path, value in pairs:
        if value in seen:
            first = report.line(seen[value])
            report.fault(path, f"{what} '{value}' is taken, first in line {first}", "give each its own")
        elif value is not None:
            seen[value] = path


def _over(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and low > high
