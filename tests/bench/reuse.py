"""How much of what could be cached is: two real vLLM replicas, ten conversations of four turns, interleaved.

The engines' own counters say what they served from their caches; what one infinite cache would have served is computed
from the tokens of every prompt and answer, in blocks of the engines' size. The last line is one JSON object.
"""

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import httpx
from msgspec import Struct

from forebay.platform.local.paths import MODEL, Paths
from forebay.platform.local.vllm import BLOCK
from forebay.platform.stores import embedded
from tests.doubles.wire import counters
from tests.e2e.engines import Engine, running_engine, state_with_engines
from tests.processes import Door, front_door

TURNS = 4
ANSWER = 24  # tokens
AT_ONCE = 2
PROMPT, CACHED = "vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total"
_SYSTEM = "You are a patient guide. You answer in one or two short sentences, and you never repeat yourself. " * 2
_TOPICS = (
    "rivers", "bridges", "clocks", "bread", "whales", "glass", "mountains", "paper", "trains", "honey", "salt", "wool"
)
_QUESTIONS = (
    (
        "Tell me something that most people do not know about {topic}, and say where one could see it. Then ask me "
        "which part of it I would like to hear more of, and name at least two parts that I can choose from."
    ),
    (
        "That is new to me. How did people come to know that about {topic}, who was the first to write it down, and "
        "what did the others of their time say to it?"
    ),
    "And what has changed since then? Think of tools, of trade, of the way in which children learn about {topic}.",
    "Thank you. Please say in one sentence what I should remember about {topic} a year from now.",
)


class Talk(Struct):
    """One conversation, and the tokens that a cache could hold of it so far."""

    topic: str
    messages: list[dict[str, str]]
    prompt_tokens: int = 0
    answered: int = 0


class InfiniteCache:
    """What a single cache without end would serve: whole blocks of what was computed before, never a whole prompt."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._held: set[tuple[int, ...]] = set()

    def store(self, tokens: list[int]) -> None:
        self._held.update(tuple(tokens[:end]) for end in range(self._block, len(tokens) + 1, self._block))

    def would_serve(self, tokens: list[int]) -> int:
        served = 0
        for end in range(self._block, len(tokens), self._block):
            if tuple(tokens[:end]) not in self._held:
                break
            served = end
        return served


async def bench(talks: int, paths: Paths, engines: list[Engine]) -> dict[str, Any]:
    cache, possible = InfiniteCache(BLOCK), 0
    told = [Talk(topic, [{"role": "system", "content": _SYSTEM}]) for topic in _TOPICS[:talks]]
    async with _front_door(paths, engines) as door, httpx.AsyncClient(timeout=600.0) as client:
        before = await _counted(client, engines)
        began = time.monotonic()
        for turn in range(TURNS):
            some = asyncio.Semaphore(AT_ONCE)
            await asyncio.gather(*(_ask(client, door, some, talk, turn) for talk in told))
            for talk in told:  # in the order in which they were asked
                tokens = await _tokens(client, engines[0], talk.messages[:-1])
                possible += cache.would_serve(tokens)
                cache.store(tokens)
            for talk in told:  # the answer's last token is never computed
                whole = await _tokens(client, engines[0], talk.messages, prompt=False)
                cache.store(whole[: talk.prompt_tokens + talk.answered - 1])
            print(f"turn {turn + 1} of {TURNS} after {time.monotonic() - began:.0f} s", flush=True)
        after = await _counted(client, engines)
    grown = [{name: b[name] - a[name] for name in (PROMPT, CACHED)} for a, b in zip(before, after, strict=True)]
    reused = sum(one[CACHED] for one in grown)
    return {
        "reused_of_possible": round(reused / possible, 4),
        "reused_tokens": int(reused),
        "possible_tokens": possible,
        "prompt_tokens": int(sum(one[PROMPT] for one in grown)),
        "share_of_first_engine": round(grown[0][PROMPT] / sum(one[PROMPT] for one in grown), 3),
    }


async def _ask(client: httpx.AsyncClient, door: Door, some: asyncio.Semaphore, talk: Talk, turn: int) -> None:
    talk.messages.append({"role": "user", "content": _QUESTIONS[turn].format(topic=talk.topic)})
    body = {"model": MODEL, "messages": talk.messages, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
    async with some:
        response = await client.post(
            f"{door.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {door.key}"}
        )
    response.raise_for_status()
    answer = response.json()
    talk.prompt_tokens = answer["usage"]["prompt_tokens"]
    talk.answered = answer["usage"]["completion_tokens"]
    talk.messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})


async def _tokens(
    client: httpx.AsyncClient, engine: Engine, messages: list[dict[str, str]], *, prompt: bool = True
) -> list[int]:
    """As the engine itself tokenizes the conversation."""
    body = {"model": MODEL, "messages": messages, "add_generation_prompt": prompt}
    response = await client.post(f"{engine.url}/tokenize", json=body)
    response.raise_for_status()
    tokens: list[int] = response.json()["tokens"]
    return tokens


async def _counted(client: httpx.AsyncClient, engines: list[Engine]) -> list[dict[str, float]]:
    return [counters((await client.get(f"{engine.url}/metrics")).text) for engine in engines]


@asynccontextmanager
async def _front_door(paths: Paths, engines: list[Engine]) -> AsyncIterator[Door]:
    with embedded.start_postgres(paths.state) as postgres, embedded.start_valkey(paths.state) as valkey:
        events = [
            {"kvEvents": engine.replica.events, "kvReplay": engine.replica.replay}
            for engine in engines
            if engine.replica is not None
        ]
        async with front_door(
            paths.state, [engine.url for engine in engines], model=MODEL, postgres=postgres.url, valkey=valkey.url,
            endpoints=events, tokenizer=str(paths.weights),
        ) as door:  # fmt: skip
            yield door


@contextmanager
def _engines() -> Iterator[tuple[Paths, list[Engine]]]:
    with ExitStack() as stack:
        paths = stack.enter_context(state_with_engines())
        yield paths, [stack.enter_context(running_engine(paths, index)) for index in range(2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=10, choices=range(1, len(_TOPICS) + 1))
    arguments = parser.parse_args()
    with _engines() as (paths, engines):
        print(json.dumps(asyncio.run(bench(arguments.conversations, paths, engines))))


if __name__ == "__main__":
    main()
