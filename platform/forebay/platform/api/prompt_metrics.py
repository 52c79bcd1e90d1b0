"""What reading prompts costs, and how much of it is remembered."""

from functools import cache
from typing import NamedTuple

from prometheus_client import Counter, Gauge, Histogram

from forebay.router import Memory, Read, Rung

PROMPTS = Counter("forebay_prompts_total", "Prompts by how their tokens were found", ["model", "rung"])
UNREAD = Counter("forebay_prompts_unread_total", "Prompts not read here since this failed", ["model", "reason"])
TOKENS = Counter("forebay_prompts_read_tokens_total", "Prompt tokens, tokenized or remembered", ["model", "how"])
SECONDS = Histogram(
    "forebay_prompt_seconds",
    "Time to render, tokenize and hash a prompt, waiting for a turn included",
    ["model"],
    buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
_BYTES = Gauge("forebay_prompt_memory_bytes", "Bytes of remembered prompts")
_PROJECTS = Gauge("forebay_prompt_memory_projects", "Projects with remembered prompts")
_EVICTIONS = Gauge("forebay_prompt_memory_evictions", "Remembered pieces given up so far, for want of room")


def watch(memory: Memory) -> None:
    _BYTES.set_function(lambda: memory.bytes)
    _PROJECTS.set_function(lambda: memory.projects)
    _EVICTIONS.set_function(lambda: memory.evictions)


class _Series(NamedTuple):
    """The series of one model and rung, looked up once."""

    prompts: Counter
    remembered: Counter
    tokenized: Counter
    seconds: Histogram


@cache
def _series(model: str, rung: Rung) -> _Series:
    return _Series(
        PROMPTS.labels(model=model, rung=rung),
        TOKENS.labels(model=model, how="remembered"),
        TOKENS.labels(model=model, how="tokenized"),
        SECONDS.labels(model=model),
    )


def read(model: str, rung: Rung, found: Read, seconds: float) -> None:
    series = _series(model, rung)
    series.prompts.inc()
    if found.remembered:
        series.remembered.inc(found.remembered)
    series.tokenized.inc(max(0, found.tokens - found.remembered))
    series.seconds.observe(seconds)
