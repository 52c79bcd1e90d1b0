"""A tenant's conversation through the OpenAI SDK, as any user's program would hold it, and the bill for it.

The SDK's own retries are off, so whatever survives an engine's end survives because the front door moved it.
"""

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import openai
from msgspec import Struct
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

MAX_TOKENS = 40  # an answer takes two seconds on one core
WRAP = 88  # columns of an answer
ASK_AGAIN = 2  # times a turn is repeated when its answer was cut in the middle

SYSTEM = (
    "You are a helpful assistant. You answer every question truthfully in one short sentence, and you use what was "
    "said earlier in the conversation when it helps to understand the question."
)
QUESTIONS: dict[str, tuple[str, ...]] = {  # within the powers of a model of 135M parameters
    "demo-a": (
        "What is the capital of Italy?",
        "Which language do people speak there?",
        "What food is Italy famous for?",
        "And what is the capital of France?",
    ),
    "demo-b": (
        "What do bees make?",
        "Why do people like honey?",
        "What colour is honey?",
        "And which insect makes it?",
    ),
}
Say = Callable[[str], None]


class Turn(Struct, frozen=True):
    answer: str
    endpoint: str  # the replica that answered, from x-forebay-endpoint
    first_token: float  # seconds
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cut: bool = False  # asked again, since an answer broke off

    def landed_after(self, earlier: "Turn", block: int) -> bool:
        """Whether the whole blocks of the turn before were still at hand where this one was answered."""
        return self.cached_tokens >= earlier.prompt_tokens // block * block


class CutError(Exception):
    """An answer that broke off after it had begun."""


class Bill(Struct):
    requests: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    cost: str = "nothing (no price)"


def client(base_url: str, key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{base_url}/v1", api_key=key, admin_api_key=key, max_retries=0, timeout=300.0)


async def converse(sdk: AsyncOpenAI, tenant: str, model: str, say: Say) -> list[Turn]:
    """All turns of one tenant, each with the whole conversation so far. Raises openai.APIError."""
    messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": SYSTEM}]
    turns = []
    for number, question in enumerate(QUESTIONS[tenant], 1):
        messages.append({"role": "user", "content": question})
        say(f"{tenant} {number}> {question}")
        turn = await _turn_or_again(sdk, tenant, model, messages, say)
        say(
            f"{tenant} {number}  [{turn.endpoint or 'an engine'}, first token after {turn.first_token:.1f} s, "
            f"{turn.cached_tokens} of {turn.prompt_tokens} prompt tokens cached, {turn.completion_tokens} generated]"
        )
        messages.append({"role": "assistant", "content": turn.answer})
        turns.append(turn)
    return turns


async def _turn_or_again(
    sdk: AsyncOpenAI, tenant: str, model: str, messages: list[ChatCompletionMessageParam], say: Say
) -> Turn:
    for left in range(ASK_AGAIN, -1, -1):
        try:
            turn = await ask(sdk, model, messages, lambda line: say(f"{tenant}    {line}"))
            return msgspec.structs.replace(turn, cut=left < ASK_AGAIN)
        except CutError as error:
            if not left:
                raise
            say(f"{tenant}    (the answer was cut: {error}; asking again)")
    raise AssertionError("unreachable")


async def ask(sdk: AsyncOpenAI, model: str, messages: list[ChatCompletionMessageParam], say: Say) -> Turn:
    """One streamed answer, said in lines as it comes. Raises CutError if it breaks off, openai.APIError before."""
    started = time.monotonic()
    raw = await sdk.chat.completions.with_raw_response.create(
        model=model, messages=messages, stream=True, stream_options={"include_usage": True},
        max_tokens=MAX_TOKENS, temperature=0,
    )  # fmt: skip
    answer, first, usage, finished = "", 0.0, None, False
    lines = _Lines(say)
    async for chunk in _unbroken(raw.parse()):
        for choice in chunk.choices:
            if choice.delta.content:
                first = first or time.monotonic() - started
                answer += choice.delta.content
                lines.add(choice.delta.content)
            finished = finished or choice.finish_reason is not None
        usage = chunk.usage or usage
    lines.end()
    if not finished:
        raise CutError("it ended without a finish_reason")
    details = usage.prompt_tokens_details if usage else None
    return Turn(
        answer=answer,
        endpoint=raw.headers.get("x-forebay-endpoint", ""),
        first_token=first,
        prompt_tokens=usage.prompt_tokens if usage else 0,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
        completion_tokens=usage.completion_tokens if usage else 0,
    )


async def _unbroken(stream: Any) -> AsyncIterator[ChatCompletionChunk]:
    """Once headers have come, what the SDK raises is an answer cut short."""
    try:
        async for chunk in stream:
            yield chunk
    except openai.APIError as error:
        raise CutError(error.message) from error


async def bill(sdk: AsyncOpenAI, since: float) -> Bill:
    """What the key's tenant used since then, from the usage API as the SDK reads it."""
    found = Bill()
    usage = await sdk.admin.organization.usage.completions(start_time=int(since), bucket_width="1d", limit=2)
    for bucket in usage.data:
        for result in bucket.results:
            if result.object == "organization.usage.completions.result":
                found.requests += result.num_model_requests
                found.input += result.input_tokens
                found.cached += result.input_cached_tokens or 0
                found.output += result.output_tokens
    costs = await sdk.admin.organization.usage.costs(start_time=int(since), limit=2)
    for day in costs.data:
        for item in day.results:
            if item.object == "organization.costs.result" and item.amount and item.amount.value is not None:
                found.cost = f"{item.amount.value:f} {(item.amount.currency or '').upper()}"
    return found


class _Lines:
    """Words of a stream as lines, so that two conversations can be read side by side."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._line = ""

    def add(self, text: str) -> None:
        self._line += text
        while "\n" in self._line or len(self._line) > WRAP:
            line, newline, rest = self._line.partition("\n")
            if not newline or len(line) > WRAP:
                cut = self._line.rfind(" ", 0, WRAP) if " " in self._line[:WRAP] else WRAP
                line, rest = self._line[:cut], self._line[cut:].removeprefix(" ")
            self._line = rest
            if line.strip():
                self._say(line)

    def end(self) -> None:
        if self._line.strip():
            self._say(self._line)
        self._line = ""
