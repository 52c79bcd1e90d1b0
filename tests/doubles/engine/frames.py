"""The bytes of answers, as vLLM 0.32 prints them: key order, nulls and spaces included. Pure.

A stream's frames share their pieces, which are built once for each stream, so that a frame costs one formatting.
"""

from collections.abc import Sequence as Many
from typing import Any

import msgspec

from tests.doubles.engine.generation import Job, Sequence
from tests.doubles.engine.tokens import encode

DONE = b"data: [DONE]\n\n"
FINGERPRINT = b"vllm-0.32.0-d0b1e000"
_STAMP = b',"system_fingerprint":"' + FINGERPRINT + b'"'
_LOGPROB = -0.5


def escaped(text: bytes) -> bytes:
    """Text as it stands inside a JSON string."""
    return msgspec.json.encode(text.decode("utf-8", "replace"))[1:-1]


def frame(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"


class StreamFrames:
    """The frames of one stream; `job` says what was asked for."""

    def __init__(self, job: Job, model: bytes, created: int, *, details: bool) -> None:
        self._job = job
        self._details = details
        self._kind = b"chat.completion.chunk" if job.chat else b"text_completion"
        self._open = b'data: {"id":%b,"object":"%b","created":%d,"model":"%b","choices":[' % (
            msgspec.json.encode(job.id), self._kind, created, model
        )  # fmt: skip
        before = b'"delta":{"content":"' if job.chat else b'"text":"'
        self._heads = [
            b'%b{"index":%d,%b' % (self._open, index, before) for index in range(job.n * len(job.prompts))
        ]
        if job.chat:
            self._mid = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
        else:
            self._mid = b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,'
            self._mid += b'"token_ids":null}]'
        if job.continuous:
            self._mids = [self._mid + b',"usage":{"prompt_tokens":%d,"total_tokens":' % len(p) for p in job.prompts]
        self._tail = b',"completion_tokens_details":null}}\n\n' if job.chat else b"}}\n\n"
        self._plain = job.logprobs is None and not job.token_ids

    def delta(self, sequence: Sequence, text: bytes, token_count: int = 1) -> bytes:
        """One more piece of an answer, or its end. `token_count` of its last tokens belong to the frame."""
        if self._plain and sequence.finish_reason is None:
            head = self._heads[sequence.index]
            if self._job.continuous:
                done = sequence.generated
                return b'%b%b%b%d,"completion_tokens":%d%b' % (
                    head, text, self._mids[sequence.number], sequence.prompt_length + done, done, self._tail
                )  # fmt: skip
            return b"%b%b%b}\n\n" % (head, text, self._mid)
        return self._any(sequence, text, token_count)

    def roles(self) -> list[bytes]:
        """A chat's first frame for each choice. vLLM sends them with the first output, an abort included."""
        prompt = self._job.prompts[0]
        usage = self._usage(len(prompt), 0) if self._job.continuous else b""
        ids = msgspec.json.encode(prompt) if self._job.token_ids else b"null"
        return [
            b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]%b,'
            b'"prompt_token_ids":%b,"prompt_text":null}\n\n' % (self._open, index, usage, ids)
            for index in range(self._job.n)
        ]

    def tool_delta(self, sequence: Sequence, text: bytes, call_id: bytes | None) -> bytes:
        """A piece of a tool call; the first carries its id and name."""
        tool = self._job.tool
        assert tool is not None
        if call_id is not None:
            call = b'{"id":"%b","type":"function","index":0,"function":{"name":%b,"arguments":"%b"}}' % (
                call_id, msgspec.json.encode(tool.name), escaped(text)
            )  # fmt: skip
        else:
            call = b'{"index":0,"function":{"arguments":"%b"}}' % escaped(text)
        body = b'{"index":%d,"delta":{"tool_calls":[%b]},"logprobs":null,"finish_reason":null,"token_ids":null}' % (
            sequence.index, call
        )  # fmt: skip
        return self._close(sequence, body, stamp=False)

    def usage(self, sequences: Many[Sequence], first: Sequence | None) -> bytes:
        """The last frame, with totals. vLLM takes the cached tokens of `first`, the sequence that answered first."""
        prompt = sum(map(len, self._job.prompts))
        done = sum(sequence.generated for sequence in sequences)
        usage = b'"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d' % (prompt, prompt + done, done)
        if self._details and first is not None:
            usage += b',"prompt_tokens_details":{"cached_tokens":%d' % first.hit
            usage += b',"created_cache_tokens":%d}' % first.created_cache if self._job.chat else b"}"
        return b"%b],%b}%b}\n\n" % (self._open, usage, _STAMP)

    def _any(self, sequence: Sequence, text: bytes, token_count: int) -> bytes:
        ids = msgspec.json.encode(sequence.tokens[-token_count:]) if self._job.token_ids else b"null"
        start = len(sequence.text) - len(text)
        logprobs = logprobs_of(self._job, [text], start) if self._job.logprobs is not None else b"null"
        finish = b"null" if sequence.finish_reason is None else b'"%b"' % finish_of(sequence)
        stop = msgspec.json.encode(sequence.stop_reason)
        if self._job.chat:
            text = b"" if sequence.job.tool is not None else text
            stop = b"" if sequence.finish_reason is None else b',"stop_reason":%b' % stop
            body = b'{"index":%d,"delta":{"content":"%b"},"logprobs":%b,"finish_reason":%b%b,"token_ids":%b}' % (
                sequence.index, text, logprobs, finish, stop, ids
            )  # fmt: skip
        else:
            first = self._job.token_ids and sequence.generated <= token_count
            prompt = msgspec.json.encode(self._job.prompts[sequence.number]) if first else b"null"
            body = (
                b'{"index":%d,"text":"%b","logprobs":%b,"finish_reason":%b,"stop_reason":%b,"prompt_token_ids":%b,'
                b'"token_ids":%b}' % (sequence.index, text, logprobs, finish, stop, prompt, ids)
            )
        return self._close(sequence, body, stamp=sequence.finish_reason is not None and not self._job.usage)

    def _close(self, sequence: Sequence, choice: bytes, *, stamp: bool) -> bytes:
        usage = self._usage(sequence.prompt_length, sequence.generated) if self._job.continuous else b""
        return b"%b%b]%b%b}\n\n" % (self._open, choice, usage, _STAMP if stamp else b"")

    def _usage(self, prompt: int, done: int) -> bytes:
        end = b',"completion_tokens_details":null' if self._job.chat else b""
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}' % (
            prompt, prompt + done, done, end
        )  # fmt: skip


def finish_of(sequence: Sequence) -> bytes:
    tool = sequence.job.tool
    if tool is not None and sequence.finish_reason == "stop" and not tool.named:
        return b"tool_calls"
    return (sequence.finish_reason or "stop").encode()


def whole(
    job: Job,
    sequences: Many[Sequence],
    model: str,
    created: int,
    *,
    details: bool,
    usage: str | None = None,
    call_ids: Many[str] = (),
) -> bytes:
    """An answer that is not streamed. `usage` "zero" or "missing" for the faults of those names."""
    prompt = sum(map(len, job.prompts))
    done = sum(sequence.generated for sequence in sequences)
    if usage == "zero":
        prompt = done = 0
    last = sequences[-1]
    cached = {
        "cached_tokens": last.hit,
        "created_cache_tokens": last.created_cache if job.chat else None,
        "multimodal_tokens": None,
    }
    answer: dict[str, Any] = {
        "id": job.id,
        "object": "chat.completion" if job.chat else "text_completion",
        "created": created,
        "model": model,
        "choices": [_choice(job, each, call_ids) for each in sequences],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT.decode(),
        "usage": {
            "prompt_tokens": prompt,
            "total_tokens": prompt + done,
            "completion_tokens": done,
            "prompt_tokens_details": cached if details else None,
            "completion_tokens_details": None,
        },
    }
    if usage == "missing":
        del answer["usage"]
    if job.chat:
        ids = job.prompts[0] if job.token_ids else None
        answer |= {"prompt_logprobs": None, "prompt_token_ids": ids, "prompt_text": None}
    return msgspec.json.encode(answer | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None})


def _choice(job: Job, sequence: Sequence, call_ids: Many[str]) -> dict[str, Any]:
    text = bytes(sequence.text).decode()
    logprobs = msgspec.Raw(logprobs_of(job, sequence.pieces, 0)) if job.logprobs is not None else None
    ids = sequence.tokens[sequence.prompt_length :] if job.token_ids else None
    end = {"logprobs": logprobs, "finish_reason": finish_of(sequence).decode(), "stop_reason": sequence.stop_reason}
    if not job.chat:
        shown = (job.echo[sequence.number] if job.echo else "") + text
        prompt = job.prompts[sequence.number] if job.token_ids else None
        rest = {"token_ids": ids, "prompt_logprobs": None, "prompt_token_ids": prompt, "routed_experts": None}
        return {"index": sequence.index, "text": shown, **end, **rest}
    message: dict[str, Any] = {"role": "assistant", "content": "" if job.tool else text, "refusal": None}
    message |= {"annotations": None, "audio": None, "function_call": None}
    if job.tool is not None:
        function = {"name": job.tool.name, "arguments": text}
        message["tool_calls"] = [{"id": call_ids[sequence.index], "type": "function", "function": function}]
    message["reasoning"] = None
    return {"index": sequence.index, "message": message, **end, "token_ids": ids, "routed_experts": None}


def logprobs_of(job: Job, pieces: Many[bytes], start: int) -> bytes:
    """A constant for each piece; the alternatives are the piece itself."""
    texts = [piece.decode("utf-8", "replace") for piece in pieces]
    count = job.logprobs or 0
    if not job.chat:
        offsets = [start + sum(map(len, texts[:i])) for i in range(len(texts))]
        tops = [{text: _LOGPROB} if count else {} for text in texts]
        columns = {"text_offset": offsets, "token_logprobs": [_LOGPROB] * len(texts), "tokens": texts}
        return msgspec.json.encode(columns | {"top_logprobs": tops})
    content = []
    for text, piece in zip(texts, pieces, strict=True):
        item: dict[str, Any] = {"token": text, "logprob": _LOGPROB, "bytes": list(piece)}
        content.append(item | {"top_logprobs": [dict(item)] if count else []})
    return msgspec.json.encode({"content": content})


def embeddings(model: str, inputs: Many[str], created: int, request_id: str) -> bytes:
    """Eight numbers for each input, from its tokens."""
    rows, total = [], 0
    for index, text in enumerate(inputs):
        ids = encode(text)
        total += len(ids)
        vector = [round(((sum(ids) * (k + 1)) % 997) / 997 - 0.5, 6) for k in range(8)]
        rows.append({"index": index, "object": "embedding", "embedding": vector})
    usage = {"prompt_tokens": total, "total_tokens": total, "completion_tokens": 0, "prompt_tokens_details": None}
    answer = {"id": f"embd-{request_id}", "object": "list", "created": created, "model": model, "data": rows}
    return msgspec.json.encode(answer | {"usage": usage})
