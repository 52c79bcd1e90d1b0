"""What discovery would find for each pool now, as `forebay doctor` says it."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import islice

from forebay.platform.announced import Directory, directory_of
from forebay.platform.config.engines import Announced, Kubernetes, LocalProcesses, Pool
from forebay.platform.config.model import Config
from forebay.platform.finding import rules_of
from forebay.platform.listed import announced_ranks
from forebay.platform.local.checkup import Finding
from forebay.router import EndpointSpec
from forebay.router.discovery import ClusterError, connect
from forebay.router.discovery.cluster import own_namespace
from forebay.router.discovery.once import LookError, look
from forebay.router.routing import unplaced

MOST_SHOWN = 20  # endpoints, and faults, of one pool
PAGE = "docs/discovery.md"


async def sought(config: Config) -> tuple[list[Finding], list[tuple[Announced, str]]]:
    """Of every pool that has `discovery`; and the engines of this machine, each with the model that it should serve."""
    findings: list[Finding] = []
    here: list[tuple[Announced, str]] = []
    for pool in config.pools:
        if pool.discovery and pool.discovery.kubernetes:
            findings += await asyncio.to_thread(_in_kubernetes, config, pool, pool.discovery.kubernetes)
        if pool.discovery and pool.discovery.local:
            said, engines = await asyncio.to_thread(_on_this_machine, config, pool, pool.discovery.local)
            findings += said
            here += [(engine, config.served_model(pool, engine)) for engine in engines]
    return findings, here


def place(config: Config, pool: Pool) -> str:
    """Where the engines of a pool with `discovery` are looked for."""
    if pool.discovery and pool.discovery.local:
        return f"by files in {directory_of(config, pool, pool.discovery.local)}"
    options = (pool.discovery and pool.discovery.kubernetes) or Kubernetes()
    by = [f"service {options.service}" if options.service else "", options.selector or ""]
    namespace = options.namespace or f"{own_namespace()} (Forebay's own)"
    return f"in Kubernetes by {', '.join(filter(None, by))} in namespace {namespace}, port {options.port}"


def _in_kubernetes(config: Config, pool: Pool, options: Kubernetes) -> list[Finding]:
    name, namespace = f"pool {pool.name}", options.namespace or own_namespace()
    with ExitStack() as stack:
        try:
            cluster = connect()
            stack.callback(cluster.close)
            pods = cluster.pods(namespace, options.selector or "")
            slices = cluster.slices(namespace, options.service) if options.service else None
            known = look(pods, slices, rules_of(options, config.served_model(pool, options)))
        except ClusterError as error:
            return [Finding(name, "fail", str(error), f"see {PAGE}")]
        except LookError as error:
            fix = f"let this account list and watch them in namespace {namespace}, or correct it: {PAGE}"
            return [Finding(name, "fail", str(error), fix)]
    faults = {f"pod {pod}": why for pod, why in known.left_out.items()}
    return _findings(name, place(config, pool), known.specs, faults)


def _on_this_machine(config: Config, pool: Pool, options: LocalProcesses) -> tuple[list[Finding], list[Announced]]:
    name, path = f"pool {pool.name}", directory_of(config, pool, options)
    try:
        found = Directory(path, options.api_key_env).look()
    except FileNotFoundError:
        return [Finding(name, "warn", f"there is no {path} yet", "start the front door, or forebay announce")], []
    except OSError as error:
        return [Finding(name, "fail", f"its directory cannot be used: {error}", f"see {PAGE}")], []
    specs = [
        spec for engine, at in found.engines for spec in announced_ranks(engine, at, config.served_model(pool, engine))
    ]
    faults = {f"{file!a}": why for file, why in found.left_out.items()}
    return _findings(name, place(config, pool), specs, faults), [engine for engine, _ in found.engines]


def _findings(
    name: str, where: str, specs: Sequence[EndpointSpec], left_out: Mapping[str, str]
) -> list[Finding]:
    idle = {spec.name: why for spec in specs if (why := spec.draining or unplaced(spec.group.role))}
    text = f"{len(specs)} endpoint{'' if len(specs) == 1 else 's'} {where}"
    if idle:
        text += f", {len(idle)} of them sent nothing new"
    if len(idle) == len(specs):
        findings = [Finding(name, "warn", text, "start engines there, or correct where they are looked for")]
    else:
        findings = [Finding(name, "ok", text)]
    findings += [Finding(name, "ok", f"{one}: {why}") for one, why in islice(idle.items(), MOST_SHOWN)]
    findings += [
        Finding(name, "warn", f"{one} is left out: it {why}", f"see {PAGE}")
        for one, why in islice(left_out.items(), MOST_SHOWN)
    ]
    if len(left_out) > MOST_SHOWN:
        findings.append(Finding(name, "warn", f"{len(left_out) - MOST_SHOWN} more are left out", f"see {PAGE}"))
    return findings
