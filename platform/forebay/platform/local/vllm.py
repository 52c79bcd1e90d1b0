"""How a local vLLM replica is run on CPU cores: one engine per core, prefix caching with KV events, priorities."""

import hashlib
import json
import os
import tempfile
from pathlib import Path

from msgspec import Struct

from forebay.platform.local.paths import MODEL, Paths
from forebay.platform.local.process import Part

HOST = "127.0.0.1"
CONTEXT = 8192  # tokens, the model's own limit
BLOCK = 32  # tokens; CPU attention wants a multiple of 32, and events come only for full blocks
_SOCKET_LIMIT = 100  # bytes of a socket's path, below the 104 and 108 of macOS and Linux

_DOING = (  # newest first: what a line of vLLM's log means to somebody who waits
    ("Application startup complete", "ready"),
    ("Starting vLLM server", "opening its port"),
    ("init engine", "warmed up"),
    ("KV cache", "reserving the KV cache"),
    ("Loading weights took", "weights loaded"),
    ("Starting to load model", "loading the weights"),
    ("Initializing a V1 LLM engine", "starting the engine core"),
    ("Resolved architecture", "reading the model's configuration"),
    ("version ", "importing vLLM"),
    (") ERROR ", "an error, see its log"),
    ("Traceback (most recent call last)", "an error, see its log"),
)


class Replica(Struct, frozen=True):
    """`events` and `replay` are the ZMQ addresses of its KV events: sockets in a private directory, not ports, since
    the events carry the tokens of everybody's prompts."""

    name: str
    port: int
    events: str
    replay: str

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


def replica(paths: Paths, index: int, port: int) -> Replica:
    sockets = _socket_directory(paths)
    return Replica(
        name=f"engine-{index}",
        port=port,
        events=f"ipc://{sockets}/kv-{index}",
        replay=f"ipc://{sockets}/kv-{index}-replay",
    )


def part(paths: Paths, replica: Replica, *, index: int, kv_cache_gib: int) -> Part:
    """The process of one replica. Replicas share out the cores this process may use."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": replica.events,
        "replay_endpoint": replica.replay,
        "topic": f"kv@{HOST}:{replica.port}@{MODEL}",
    }
    return Part(
        name=replica.name,
        argv=(
            str(paths.engine_python), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(paths.weights), "--served-model-name", MODEL,
            "--host", HOST, "--port", str(replica.port),
            "--max-model-len", str(CONTEXT), "--block-size", str(BLOCK), "--enforce-eager",
            "--enable-prompt-tokens-details", "--enable-scale-out",
            "--scheduling-policy", "priority", "--shutdown-timeout", "10",
            "--kv-events-config", json.dumps(events),
        ),
        env={
            "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": str(cores[index % len(cores)]),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONUNBUFFERED": "1",
        },
        ready_url=f"{replica.url}/health",
        ready_timeout=600.0,
        stop_timeout=5.0,  # the front door has drained by then, and vLLM's workers take 10 s to notice their end
        rank=1,
        describe=doing,
    )  # fmt: skip


def doing(line: str) -> str | None:
    return next((words for mark, words in _DOING if mark in line), None)


def _socket_directory(paths: Paths) -> Path:
    """Private to this account: `run` in the state directory where its path is short enough for a socket."""
    directory = paths.state / "run"
    if len(os.fsencode(directory / "kv-00-replay")) > _SOCKET_LIMIT:
        mark = hashlib.sha256(os.fsencode(paths.state)).hexdigest()[:12]
        directory = Path(tempfile.gettempdir()) / f"forebay-run-{mark}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        directory.chmod(0o700)  # fails if it belongs to somebody else, as it should
    return directory
