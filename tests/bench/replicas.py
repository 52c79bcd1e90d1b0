"""What the router is worth on real engines: two vLLM replicas whose caches are too small for all conversations at once.

The same agents (each turn brings a tool's result and waits for a short answer, with pauses) run against the replicas
in turn, and through the front door; in rounds, each with words of its own, so that nothing is found from before. Round
robin costs nothing here: its requests go to the engines directly. Reuse is what the engines' own counters say. The
last line is one JSON object.
"""

import argparse
import asyncio
import itertools
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx

from forebay.platform.local.paths import MODEL, Paths
from forebay.platform.local.vllm import BLOCK
from forebay.platform.stores import embedded
from tests.bench.reuse import CACHED, PROMPT
from tests.doubles.wire import counters
from tests.e2e.engines import Engine, running_engine, state_with_engines
from tests.processes import front_door

ANSWER = 8  # tokens
SYSTEM_WORDS, RESULT_WORDS = 300, 150
PAUSE_S = 1.0  # between two turns of an agent, on average
CACHE_SHARE = 0.45  # of the tokens of all conversations at their end, in each replica's cache
TOKENS_PER_WORD = 1.5  # about, of the words below
_WORDS = (
    "harbour", "lantern", "orchard", "copper", "meadow", "signal", "window", "river", "granite", "feather", "village",
    "compass", "thunder", "saddle", "garden", "marble", "ribbon", "anchor", "bottle", "canyon", "dragon", "ember",
    "forest", "glacier", "hollow", "island", "jungle", "kettle", "ladder", "mirror",
)  # fmt: skip

Chat = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


async def bench(agents: int, turns: int, rounds: int, paths: Paths, engines: list[Engine]) -> dict[str, Any]:
    results: dict[str, list[dict[str, float]]] = {"round-robin": [], "forebay": []}
    async with httpx.AsyncClient(timeout=900.0) as client:
        with embedded.start_postgres(paths.state) as postgres, embedded.start_valkey(paths.state) as valkey:
            replicas = [engine.replica for engine in engines if engine.replica is not None]
            events = [{"kvEvents": replica.events, "kvReplay": replica.replay} for replica in replicas]
            async with front_door(
                paths.state, [engine.url for engine in engines], model=MODEL, postgres=postgres.url,
                valkey=valkey.url, endpoints=events, tokenizer=str(paths.weights),
            ) as door:  # fmt: skip
                ways: dict[str, Chat] = {
                    "round-robin": _in_turn(client, engines),
                    "forebay": _through(client, door.url, door.key),
                }
                for number, (name, chat) in itertools.product(range(rounds), ways.items()):
                    measured = await _run(client, engines, chat, agents, turns, f"{number}-{name}")
                    results[name].append(measured)
                    print(f"round {number + 1} {name:12} {measured}", flush=True)
    medians = {
        name: {key: round(statistics.median(one[key] for one in measured), 3) for key in measured[0]}
        for name, measured in results.items()
    }
    gain = medians["forebay"]["requests_per_minute"] / medians["round-robin"]["requests_per_minute"]
    return {"completed_ratio": round(gain, 3), **medians}


async def _run(
    client: httpx.AsyncClient, engines: list[Engine], chat: Chat, agents: int, turns: int, mark: str
) -> dict[str, float]:
    before = await _counted(client, engines)
    began = time.monotonic()
    firsts = await asyncio.gather(*(_agent(chat, turns, f"{mark}-{number}") for number in range(agents)))
    took = time.monotonic() - began
    after = await _counted(client, engines)
    prompt = sum(b[PROMPT] - a[PROMPT] for a, b in zip(before, after, strict=True))
    cached = sum(b[CACHED] - a[CACHED] for a, b in zip(before, after, strict=True))
    return {
        "requests_per_minute": round(60 * agents * turns / took, 2),
        "reuse": round(cached / prompt, 4),
        "answer_s_mean": round(statistics.fmean(itertools.chain(*firsts)), 3),
    }


async def _agent(chat: Chat, turns: int, mark: str) -> list[float]:
    """Seconds of each of its answers."""
    rng = random.Random(mark)
    messages = [{"role": "system", "content": f"You are agent {mark}. {_text(rng, SYSTEM_WORDS)}"}]
    took = []
    for turn in range(turns):
        await asyncio.sleep(rng.expovariate(1 / PAUSE_S))
        messages.append({"role": "user", "content": f"Result {turn}: {_text(rng, RESULT_WORDS)} What next?"})
        body = {"model": MODEL, "messages": messages, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
        began = time.monotonic()
        answer = await chat(body)
        took.append(time.monotonic() - began)
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    return took


def _in_turn(client: httpx.AsyncClient, engines: list[Engine]) -> Chat:
    turn = itertools.cycle(engines)

    async def chat(body: dict[str, Any]) -> dict[str, Any]:
        response = await client.post(f"{next(turn).url}/v1/chat/completions", json=body)
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer

    return chat


def _through(client: httpx.AsyncClient, url: str, key: str) -> Chat:
    async def chat(body: dict[str, Any]) -> dict[str, Any]:
        """Streamed, as agents do it; put together."""
        text = []
        async with client.stream(
            "POST", f"{url}/v1/chat/completions", json={**body, "stream": True},
            headers={"authorization": f"Bearer {key}"},
        ) as response:  # fmt: skip
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RuntimeError(line)
                    text += [choice["delta"].get("content") or "" for choice in event["choices"]]
        return {"choices": [{"message": {"content": "".join(text)}}]}

    return chat


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(words))


async def _counted(client: httpx.AsyncClient, engines: list[Engine]) -> list[dict[str, float]]:
    return [counters((await client.get(f"{engine.url}/metrics")).text) for engine in engines]


@contextmanager
def _engines(blocks: int) -> Iterator[tuple[Paths, list[Engine]]]:
    with ExitStack() as stack:
        paths, few = stack.enter_context(state_with_engines()), ("--num-gpu-blocks-override", str(blocks))
        yield paths, [stack.enter_context(running_engine(paths, index, *few)) for index in range(2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    tokens = arguments.agents * (SYSTEM_WORDS + arguments.turns * (RESULT_WORDS + 10)) * TOKENS_PER_WORD
    blocks = round(CACHE_SHARE * tokens / BLOCK)
    print(f"{arguments.agents} agents of {arguments.turns} turns, {blocks} blocks of {BLOCK} tokens in each cache")
    with _engines(blocks) as (paths, engines):
        print(json.dumps(asyncio.run(bench(arguments.agents, arguments.turns, arguments.rounds, paths, engines))))


if __name__ == "__main__":
    main()
