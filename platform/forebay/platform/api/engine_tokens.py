"""Prompts tokenized by an engine, for models whose tokenizer the front door does not have.

Source: vLLM 0.32, `POST /tokenize`, which takes a chat's messages or a text.
"""

import asyncio
import itertools
from typing import Any

import msgspec
from msgspec import Raw, Struct

from forebay.platform.api.requests import ChatSource
from forebay.router import Pool, Router, UpstreamError

LARGEST = 1 << 18  # bytes: tokenizing more takes an engine's front end from everybody for too long
AT_ONCE = 8
MOST_TEXTS = 4  # prompts of one request: they are asked for one after the other
TIMEOUT_S = 2.0
_WITH_CHAT = ("tools", "add_generation_prompt", "continue_final_message")


class _Answer(Struct):
    tokens: list[int]


class EngineTokens:
    """`chat` and `text` answer None where no engine can be asked, or none answers in time."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._some = asyncio.Semaphore(AT_ONCE)
        self._turns = itertools.count()

    async def chat(self, pool: Pool, source: ChatSource, body: bytes) -> list[int] | None:
        if len(body) > LARGEST:  # before anything of it is copied
            return None
        layout = source.layout
        members: dict[str, Any] = {name: source.members[name] for name in _WITH_CHAT if name in source.members}
        kwargs = dict(source.members.get("chat_template_kwargs", {}))
        if "reasoning_effort" in source.members:
            kwargs.setdefault("reasoning_effort", source.members["reasoning_effort"])
        if kwargs:
            members["chat_template_kwargs"] = kwargs
        members["messages"] = source.messages if layout is None else Raw(body[layout.start : layout.end])
        return await self._ask(pool, members)

    async def text(self, pool: Pool, prompt: str) -> list[int] | None:
        return None if len(prompt) > LARGEST else await self._ask(pool, {"prompt": prompt})

    def can_ask(self, pool: Pool) -> bool:
        """Whether some engine of the pool tokenizes for others at all."""
        return any(endpoint.adapter.tokenizes for endpoint in pool.endpoints.values())

    async def _ask(self, pool: Pool, members: dict[str, Any]) -> list[int] | None:
        states = self._router.states(pool.name)
        able = [one for name, one in pool.endpoints.items() if one.adapter.tokenizes and name in states]
        asked = [one for one in able if states[one.name].open]
        if not asked:
            return None
        endpoint = asked[next(self._turns) % len(asked)]
        body = msgspec.json.encode({"model": endpoint.spec.served_model, **members})
        if len(body) > LARGEST:
            return None
        try:
            async with asyncio.timeout(TIMEOUT_S), self._some:  # waiting for a turn included
                status, answer = await endpoint.call(b"POST", b"/tokenize", body, timeout=TIMEOUT_S)
            return msgspec.json.decode(answer, type=_Answer).tokens if status == 200 else None
        except (TimeoutError, UpstreamError, msgspec.DecodeError, UnicodeDecodeError):
            return None
