"""What it costs to place an agent's next turn: from the bytes of its body to the endpoint, with rendering, tokenizing,
hashing and weighing 64 endpoints. The tenant has sent the earlier turns before; the two newest messages are new
(some 630 tokens, as in recorded sessions of coding agents).

Printed beside it: the same under a template with tools, the first turn of a conversation nobody knows, a turn of a few
tokens, and tokenizing the prompt whole, now and then between the turns: a machine that others use is slow for seconds.
CPU of the process, median of the rounds. The last line is one JSON object.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from forebay.platform.api.engine_tokens import EngineTokens
from forebay.platform.api.prompts import Prompts, Unread
from forebay.platform.api.requests import decode
from forebay.platform.catalogue import Entry
from forebay.platform.config.load import load_config
from forebay.platform.config.model import Model
from forebay.platform.local.paths import paths
from forebay.platform.readers import Readers
from forebay.router import (
    Ask,
    Chat,
    EndpointSpec,
    Following,
    Ladder,
    LocalRouter,
    Memory,
    Outcome,
    Placed,
    Pool,
    Prompter,
    Template,
    Tokenizer,
    Weights,
)
from forebay.router.core import Core
from forebay.router.dispatch import Dispatch
from forebay.router.prefix.blocks import Stored, Tier
from forebay.router.prefix.keys import Ids
from tests.bench.agent import Agent

ENDPOINTS, BLOCK = 64, 16
MESSAGES = 200
LEAST = 195_000  # tokens of the whole conversation
CONTEXT = 1 << 20
EVERY = 25  # rounds, between two times that the prompt is tokenized whole
SALT = "salt"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOOLS_TEMPLATE = Path(__file__).with_name("tools.jinja")


class House(Struct):
    """What stands between a body and its endpoint."""

    prompts: Prompts
    core: Core
    router: LocalRouter
    entry: Entry
    tokenizer: Tokenizer
    template: Template
    weights: Weights

    async def place(self, body: bytes, project: str) -> tuple[Placed, int]:
        """As `api/inference.py` and `relay/relay.py` do it for a request."""
        known = self.prompts.known(project, "chat.completions", body)
        inference, source = decode("chat.completions", body, known.prior if known else None)
        prompt = await self.prompts.read(Unread(project, SALT, self.entry, inference, source, known, body))
        placed = await self.router.place(Ask("main", prompt.keys, prompt.tokens, inference.output))
        assert isinstance(placed, Placed)
        return placed, prompt.tokens

    def announce(self, ids: list[int], endpoint: str) -> None:
        """KV events of an engine that has computed a prompt of these tokens."""
        blocks = len(ids) // BLOCK
        self.core.apply("main", endpoint, [Stored(
            hashes=[hash((endpoint, number, ids[number * BLOCK])) for number in range(blocks)], parent=None,
            tokens=ids[: blocks * BLOCK], block_size=BLOCK, lora=None, salt=SALT, tier=Tier.GPU, inexact=None,
        )])  # fmt: skip


def build(template: str | None) -> House:
    where = paths(load_config(None).stores.state_dir)
    tokenizer = Tokenizer.load(where.weights)
    weights, memory = Weights(b"bench" * 8), Memory(1 << 30, 1 << 30)
    names = [f"engine-{number}" for number in range(ENDPOINTS)]
    specs = [EndpointSpec(name, "http://127.0.0.1:9", "vllm", "bench", None, False) for name in names]
    core = Core({"main": names}, weights)
    for name in names:
        core.follows("main", name, Following.FOLLOWING)
    router = LocalRouter(Dispatch(core, time.monotonic))
    source = template or tokenizer.chat_template or ""
    compiled = Template(source, special_tokens=tokenizer.special_tokens, clock=time.monotonic)
    prompter = Prompter("bench", Ladder(tokenizer), compiled, weights, memory, today=lambda: NOW)
    model = Model(name="bench", pool="main", context_length=CONTEXT)
    entry = Entry(model, Pool("main", specs, connect_timeout=1.0), ())
    prompts = Prompts(Readers({"bench": prompter}, {}), weights, memory, router, EngineTokens(router))
    return House(prompts, core, router, entry, tokenizer, compiled, weights)


async def measure(house: House, bodies: list[bytes], project: Callable[[int], str]) -> tuple[list[float], list[int]]:
    """CPU milliseconds of each placement, and the tokens that were taken to be cached."""
    spent, cached = [], []
    for number, body in enumerate(bodies):
        began = time.process_time()
        placed, _ = await house.place(body, project(number))
        spent.append((time.process_time() - began) * 1e3)
        cached.append(placed.cached)
        house.router.ended(placed.booking, Outcome())
    return spent, cached


async def bench(rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in ("chatml", "tools"):
        tools = kind == "tools"
        house = build(TOOLS_TEMPLATE.read_text() if tools else None)
        agent = Agent(random.Random(7), messages=MESSAGES, words=640 if tools else 520, tools=tools)
        first = agent.body()
        began = time.process_time()
        placed, tokens = await house.place(first, "acme")
        cold = (time.process_time() - began) * 1e3
        house.router.ended(placed.booking, Outcome())
        whole = rendered(house, first)
        ids, whole_ms = tokenized(house, whole)
        assert len(ids) == tokens >= LEAST, (len(ids), tokens)
        for number in range(ENDPOINTS):  # one holds all of the conversation, the others more or less of it
            share = len(ids) if number == 17 else len(ids) * number // (2 * ENDPOINTS)
            house.announce(ids[:share].tolist(), f"engine-{number}")
        bodies = [agent.body() for _ in range(rounds)]
        turns, wholes = list[float](), [whole_ms]
        for start in range(0, rounds, EVERY):
            spent, cached = await measure(house, bodies[start : start + EVERY], lambda _: "acme")
            assert min(cached) > len(ids) * 0.95, min(cached)
            turns += spent
            wholes.append(tokenized(house, whole)[1])
        warm, whole_ms = statistics.median(turns), statistics.median(wholes)
        strangers, _ = await measure(house, bodies[:5], lambda number: f"stranger-{number}")
        colds = statistics.median(strangers)
        prefix = "" if kind == "chatml" else "tools_"
        found |= {
            f"{prefix}warm_cpu_ms_p50": round(warm, 3), f"{prefix}whole_tokenize_ms": round(whole_ms, 1),
            f"{prefix}tokens": tokens, f"{prefix}body_bytes": len(first), f"{prefix}cold_cpu_ms_p50": round(colds, 1),
            f"{prefix}first_cpu_ms": round(cold, 1), f"{prefix}whole_to_warm": round(whole_ms / warm, 1),
        }  # fmt: skip
        print(f"{kind}: {warm:.2f} ms warm, {whole_ms:.0f} ms to tokenize whole, {tokens} tokens", flush=True)
        if not tools:
            small = [_small(number) for number in range(200)]
            spent, _ = await measure(house, small, lambda _: "acme")
            found["small_cpu_ms_p50"] = round(statistics.median(spent), 4)
    return found


def tokenized(house: House, text: str) -> tuple[Ids, float]:
    """The tokens of a text, and CPU milliseconds of finding them as a whole."""
    began = time.process_time()
    ids = house.tokenizer.encode(text)
    return ids, (time.process_time() - began) * 1e3


def rendered(house: House, body: bytes) -> str:
    """The whole prompt as text."""
    request: dict[str, Any] = json.loads(body)
    rendered: str = house.template.render(Chat(request["messages"], tools=request.get("tools")), NOW).text
    return rendered


def _small(number: int) -> bytes:
    content = f"What does a forebay hold, and why is it placed before intake {number}?"
    return json.dumps({"model": "bench", "messages": [{"role": "user", "content": content}]}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    print(json.dumps(asyncio.run(bench(parser.parse_args().rounds))))


if __name__ == "__main__":
    main()
