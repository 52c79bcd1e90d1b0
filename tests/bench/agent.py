"""Conversations as coding agents hold them: long, of prose and code, with tools, their calls and their results."""

import json
import random
from typing import Any

_TEXT = (
    "the function returns a list of open files and their sizes so that callers may close them before they exit "
    "error: cannot find module config in path /srv/app/lib try again with --verbose if value is None: return False "
    "for index, row in enumerate(rows): print(index, row['name']) # TODO check bounds import os sys json async def main"
)
_WORDS = _TEXT.split()


def text(rng: random.Random, words: int) -> str:
    """Prose and code, with line breaks and quotes as agents' tools print them."""
    lines = (" ".join(rng.choices(_WORDS, k=rng.randint(4, 16))) for _ in range(max(1, words // 10)))
    ends = ("", "", ' "quoted"', "\t{x: 1}")
    return "\n".join(line + (rng.choice(ends) or f" {rng.randint(0, 99_999)}") for line in lines)


class Agent:
    """A conversation of so many messages, of about so many words each. `body` ends in two that no other body has."""

    def __init__(self, rng: random.Random, *, messages: int, words: int, tools: bool) -> None:
        self._rng = rng
        self._count = messages
        self._words = words
        self._tools = tools
        self._messages = [{"role": "system", "content": text(rng, words)}]
        self._messages += [self._message(number) for number in range(1, messages - 2)]
        self._members: dict[str, Any] = {"tools": [_tool(number, rng) for number in range(20)]} if tools else {}

    def _message(self, number: int) -> dict[str, Any]:
        if number % 2:
            return {"role": "tool" if self._tools and number > 1 else "user", "content": text(self._rng, self._words)}
        if not self._tools:
            return {"role": "assistant", "content": text(self._rng, self._words)}
        call = {"path": "src/main.py", "text": text(self._rng, self._words // 2), "line": number}
        function = {"name": f"tool_{number % 20}", "arguments": json.dumps(call)}
        return {
            "role": "assistant",
            "content": text(self._rng, self._words // 2),
            "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
        }

    def messages(self) -> list[dict[str, Any]]:
        answer, question = ({"role": role, "content": text(self._rng, 150)} for role in ("assistant", "user"))
        return [*self._messages, answer, question]

    def body(self) -> bytes:
        return json.dumps({"model": "bench", "messages": self.messages(), "stream": True, **self._members}).encode()


def _tool(number: int, rng: random.Random) -> dict[str, Any]:
    properties = {f"argument_{i}": {"type": "string", "description": text(rng, 20)} for i in range(4)}
    parameters = {"type": "object", "properties": properties, "required": ["argument_0"]}
    function = {"name": f"tool_{number}", "description": text(rng, 60), "parameters": parameters}
    return {"type": "function", "function": function}
