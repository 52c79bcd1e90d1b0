"""What is missing on this machine, or between it and what the configuration names, and what mends it."""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from forebay.platform.config.engines import Endpoint
from forebay.platform.config.model import Config
from forebay.platform.local import probe
from forebay.platform.local.checkup import Finding, machine
from forebay.platform.local.paths import Paths
from forebay.platform.local.sought import sought
from forebay.platform.local.stack import Running, is_taken, read_running
from forebay.platform.stores import database, embedded, valkey
from forebay.platform.stores.daemon import Daemon, StoreError


async def examine(config: Config, where: Paths) -> list[Finding]:
    """Every finding. Takes a few seconds: stores are really started or asked, and so are endpoints."""
    running = read_running(where)
    found = await asyncio.to_thread(machine, config, where)
    found += _ports(config, running)
    checks: list[Awaitable[Finding]] = [_postgres(config, where), _valkey(config, where)]
    checks += [_endpoint(one, config.served_model(pool, one)) for pool in config.pools for one in pool.endpoints]
    by_discovery, here = await sought(config)
    checks += [_endpoint(one, model) for one, model in here]
    found += [*await asyncio.gather(*checks), *by_discovery]
    if running is not None:
        found.append(await _platform(running))
    elif is_taken(where):
        found.append(Finding("platform", "ok", "starts or stops right now"))
    return found


def _ports(config: Config, running: Running | None) -> list[Finding]:
    if running is not None:
        return [Finding("ports", "ok", f"in use by the platform that runs here (pid {running.pid})")]
    port, host = config.server.port, config.server.host
    found = []
    if port and not probe.is_free(port, host):
        fix = "stop that, or set server.port in forebay.yaml"
        found.append(Finding("ports", "fail", f"{port} is in use by {probe.holder(port)}", fix))
    if not config.pools:
        first = config.local.first_port
        taken = [at for at in range(first, first + config.local.replicas) if not probe.is_free(at)]
        if taken:
            text = f"{', '.join(map(str, taken))} in use; engines will take the next free ones"
            found.append(Finding("ports", "warn", text, "nothing, or set local.firstPort"))
    return found or [Finding("ports", "ok", f"{port} is free")]


async def _postgres(config: Config, where: Paths) -> Finding:
    async def ask(url: str) -> None:
        engine = database.create_engine(url)
        try:
            await database.ping(engine)
        finally:
            await engine.dispose()

    return await _store("postgres", config.stores.postgres, embedded.postgres_url(where.state), ask, _start_postgres)


async def _valkey(config: Config, where: Paths) -> Finding:
    async def ask(url: str) -> None:
        client = valkey.create_client(url)
        try:
            await valkey.ping(client)
        finally:
            await client.aclose()

    return await _store("valkey", config.stores.valkey, embedded.valkey_url(where.state), ask, embedded.start_valkey)


def _start_postgres(directory: Path) -> Daemon:
    return embedded.start_postgres(directory, fast=True)


async def _store(
    name: str, configured: str, running: str | None, ask: Callable[[str], Awaitable[None]],
    start: Callable[[Path], Daemon],
) -> Finding:  # fmt: skip
    """A running store is asked; an embedded one that does not run is started on trial, on data of its own."""
    if configured == "embedded" and running is None:
        try:
            await asyncio.to_thread(_try_out, start)
        except (StoreError, OSError) as error:
            return Finding(name, "fail", f"does not start: {error}", "see the message; or name one by URL under stores")
        return Finding(name, "ok", "embedded, starts here")
    try:
        async with asyncio.timeout(10.0):
            await ask(running or configured)
    except Exception as error:  # noqa: BLE001 - drivers raise what they like, and every failure is a finding
        fix = f"start it, and check stores.{name} and what lies between" if running is None else "restart forebay up"
        return Finding(name, "fail", f"does not answer: {type(error).__name__}", fix)
    return Finding(name, "ok", "embedded, running" if configured == "embedded" else "answers")


def _try_out(start: Callable[[Path], Daemon]) -> None:
    with tempfile.TemporaryDirectory(prefix="fb-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o711)
        start(Path(directory)).release()


async def _endpoint(endpoint: Endpoint, model: str) -> Finding:
    name = f"endpoint {endpoint.called}"
    url = endpoint.url.rstrip("/")
    headers: Mapping[str, str] = {}
    if endpoint.api_key_env:
        key = os.environ.get(endpoint.api_key_env)
        if not key:
            return Finding(name, "warn", "its key is not set here", f"export {endpoint.api_key_env}=… and start again")
        headers = {"Authorization": f"Bearer {key}"}
    if endpoint.engine != "openai":
        status, _ = await probe.get(f"{url}/health", 5.0, headers)
        if status != 200:
            state = f"GET /health answers {status}" if status else "nobody answers"
            return Finding(name, "fail", f"{state} at {url}", "start the engine, or correct its url under pools")
    status, body = await probe.get(f"{url}/v1/models", 5.0, headers)
    if status != 200:
        state = f"GET /v1/models answers {status}" if status else f"nobody answers at {url}"
        return Finding(name, "fail", state, "check its url and key under pools")
    return _serves(name, model, body)


def _serves(name: str, model: str, body: bytes) -> Finding:
    try:
        served = [str(entry["id"]) for entry in msgspec.json.decode(body)["data"]]
    except (msgspec.DecodeError, KeyError, TypeError):
        return Finding(name, "fail", "GET /v1/models does not answer in OpenAI's shape", "is its url an engine's?")
    if model not in served:
        fix = f"set servedModel to one of: {', '.join(served[:5])}"
        return Finding(name, "fail", f"does not serve '{model}'", fix)
    return Finding(name, "ok", f"serves {model}")


async def _platform(running: Running) -> Finding:
    status, body = await probe.get(f"{running.base_url}/ready", 5.0)
    if status != 200:
        return Finding("platform", "fail", f"{running.base_url}/ready answers {status or 'nothing'}",
                       body[:200].decode("utf-8", "replace") or "see its log; or restart forebay up")  # fmt: skip
    return Finding("platform", "ok", f"ready at {running.base_url}/v1")
