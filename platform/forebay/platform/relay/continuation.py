"""Which answers another engine can continue exactly, and what it is to be asked (pure).

The tables below are the whole of what is not continued; `docs/failover.md` says the same in words. The first has what
would need the state that died with the engine: what a grammar, a parser or a penalty had counted, the other choices.
Tools that are offered are not in it, as long as none is called: a call is recognised by how it begins, and its
beginning is kept back until it is recognised, so that the continuation says it whole.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from forebay.platform.api.requests import Inference
from forebay.platform.relay.seam import Cut, Seam, Still
from forebay.router import Chat

# Token ids that say a text behind others; None where none say just that.
Behind = Callable[[list[int], str], list[int] | None]
COMPLETION_LIMIT = 16  # tokens, where a request for a completion names none (vLLM 0.32, as OpenAI)


class Members(Struct):
    """Of what was sent to the engine, what matters here."""

    messages: Raw = Raw()
    prompt: Any = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    stop: Any = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: Any = None
    top_logprobs: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    bad_words: list[str] | None = None
    response_format: dict[str, Any] | None = None
    tools: Any = None
    tool_choice: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def one_prompt(self) -> str | list[int]:
        """Of a completion of a single one: a text or token ids, alone or in a list."""
        prompt: Any = self.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        return prompt  # type: ignore[no-any-return]  # it was checked when the request came

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1


class Row(Struct, frozen=True):
    """A kind of request whose answers are not continued."""

    reason: str
    says: str
    holds: Callable[[Inference, Members], Any]


UNFAITHFUL = (
    Row("choices", "several choices were asked for", lambda i, m: i.n > 1),
    Row("prompts", "several prompts were sent", lambda i, m: i.prompts > 1),
    Row("echo", "the prompt is part of the answer", lambda i, m: m.echo),
    Row("suffix", "it is inserted before a text", lambda i, m: m.suffix),
    Row("logprobs", "log probabilities were asked for",
        lambda i, m: m.logprobs if i.api == "chat.completions" else m.logprobs is not None),
    Row("structured_output", "it follows a format", lambda i, m: (m.response_format or {}).get("type") not in
        (None, "text")),
    Row("tool_choice", "a tool has to be called", lambda i, m: m.tool_choice not in (None, "auto", "none")),
    Row("penalties", "words are penalised that were said before",
        lambda i, m: m.frequency_penalty or m.presence_penalty or m.repetition_penalty not in (None, 1)),
    Row("bad_words", "words are forbidden", lambda i, m: m.bad_words),
    Row("special_tokens", "it shows special tokens", lambda i, m: m.skip_special_tokens is False),
    Row("stop_shown", "it shows its stop strings", lambda i, m: m.include_stop_str_in_output and m.stop),
    Row("final_message", "it continues a message of the request",
        lambda i, m: m.continue_final_message or m.add_generation_prompt is False),
)  # fmt: skip
# Said of an answer, not of a request: see `Seam.blocked`.
BLOCKED = {
    "tool_call": "a tool is being called",
    "reasoning": "it has reasoned",
    "content_parts": "it is not plain text",
}
OTHERS = {
    "untold_usage": "its engine does not tell how many tokens it has given",
    "complete": "no token may be left",
    "token_ids": "its prompt was sent as token ids, and the model's tokenizer is not known, or says it otherwise there",
    "template": "the model's chat template does not continue it exactly (as Harmony's), or is not known",
    "engine": "no engine of its pool can continue what another one began",
}
# It could be, and was not.
AWAY = {
    "diverged": "the next engine went on otherwise",
    "refused": "the next engine refused",
    "no_endpoint": "there is no other engine",
    "no_room": "no engine has time for it",
    "attempts": "engine after engine was lost",
    "moves": "it was taken away too often",
    "budget": "too many others were retried",
    "total": "its time is over",
    "first_byte": "its time is over",
}


class Resumption(Struct, frozen=True):
    """What is asked of the next engine, and how that fits to what the client has."""

    inference: Inference
    cut: Cut


def members_of(inference: Inference) -> Members:
    return msgspec.json.decode(inference.forward, type=Members)


def unfaithful(inference: Inference, members: Members) -> str:
    """Why no answer to this request is continued; empty where it can be."""
    return next((row.reason for row in UNFAITHFUL if row.holds(inference, members)), "")


def resumption(
    inference: Inference, members: Members, seam: Seam | Still, behind: Behind | None = None
) -> Resumption | str:
    """What to ask for, or why the answer cannot be continued. `behind` is the model's, where its tokenizer is known."""
    if reason := unfaithful(inference, members) or seam.blocked:
        return reason
    cut = seam.cut(greedy=members.greedy)
    if cut.tokens is None:
        return "untold_usage"
    limits = _limits(inference, members, cut.tokens)
    if any(limit < 1 for name, limit in limits.items() if name != "min_tokens"):
        return "complete"
    raw = msgspec.json.decode(inference.forward, type=dict[str, Raw])
    raw |= {name: Raw(msgspec.json.encode(limit)) for name, limit in limits.items()}
    if cut.text:
        begun = _begun(inference, members, raw, cut.text, behind)
        if begun is None:
            return "token_ids"
        raw |= begun
    forward = msgspec.json.encode(raw)
    return Resumption(structs.replace(inference, forward=forward), cut)


def chat_of(members: Members) -> Chat:
    """The chat as its template sees it."""
    return Chat(
        msgspec.json.decode(members.messages),
        tools=members.tools,
        tool_choice=members.tool_choice,
        template_kwargs=members.chat_template_kwargs or {},
        reasoning_effort=members.reasoning_effort,
    )


def _begun(
    inference: Inference, members: Members, raw: dict[str, Raw], text: str, behind: Behind | None
) -> dict[str, Raw] | None:
    """The prompt with the answer behind it; None where that cannot be said in token ids."""
    if inference.api != "chat.completions":
        prompt = members.one_prompt
        if isinstance(prompt, str):
            return {"prompt": Raw(msgspec.json.encode(prompt + text))}
        ids = None if behind is None else behind(prompt, text)
        return None if ids is None else {"prompt": Raw(msgspec.json.encode([*prompt, *ids]))}
    messages = bytes(raw["messages"]).rstrip()[:-1].rstrip()
    message = msgspec.json.encode({"role": "assistant", "content": text})
    return {
        "messages": Raw(messages + b"," + message + b"]"),
        "add_generation_prompt": Raw(b"false"),
        "continue_final_message": Raw(b"true"),
    }


def _limits(inference: Inference, members: Members, tokens: int) -> dict[str, int]:
    limits = {
        name: limit - tokens
        for name in ("max_tokens", "max_completion_tokens")
        if (limit := getattr(members, name)) is not None
    }
    if inference.api == "completions" and not limits:
        limits["max_tokens"] = COMPLETION_LIMIT - tokens
    if members.min_tokens:
        limits["min_tokens"] = max(0, members.min_tokens - tokens)
    return limits
