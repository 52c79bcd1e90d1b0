"""Streams recorded of OpenAI-compatible providers, where this machine has them (they are never committed)."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "traces" / "openai_wire"
ABSENT = f"no recorded streams: {FOLDER} is absent"


class Recording(Struct, frozen=True):
    """One answer as it came: `raw` is the whole event stream, `[DONE]` included."""

    name: str
    raw: bytes

    @property
    def events(self) -> list[dict[str, Any]]:
        """What an SSE reader makes of it: comments and `[DONE]` left out."""
        lines = self.raw.replace(b"\r\n", b"\n").split(b"\n")
        data = [line.removeprefix(b"data:").strip() for line in lines if line.startswith(b"data:")]
        return [json.loads(text) for text in data if text and text != b"[DONE]"]

    @property
    def model(self) -> str:
        return next((str(event["model"]) for event in self.events if event.get("model")), "unnamed")


def recordings(*, one_per_model: bool = False) -> list[Any]:
    """A parameter for each stream of chunks (chat or completions); one that is skipped, plainly, where there are none.
    Streams of the Responses API are no matter of these routes."""
    found = [*_chunk_files(), *_recorded()] if FOLDER.is_dir() else []
    if not found:
        return [pytest.param(None, marks=pytest.mark.skip(reason=ABSENT), id="absent")]
    if one_per_model:
        found = [*{one.model: one for one in found}.values()]
    return [pytest.param(one, id=one.name) for one in found]


def whole_answers() -> list[Any]:
    """A parameter for each answer that was not streamed, as JSON text; tool calls without ids among them."""
    found = []
    for path in [*sorted(FOLDER.glob("recorded/*.jsonl")), *sorted(FOLDER.glob("odd/*.jsonl"))]:
        for number, line in enumerate(path.read_text().splitlines()):
            answer = json.loads(line)
            raw = json.dumps(answer["response_json"]) if answer["response_json"] else answer["response_raw"] or ""
            if raw.lstrip().startswith("{") and "choices" in json.loads(raw):
                found.append(pytest.param(raw.encode(), id=f"{path.stem}-{number}"))
    return found or [pytest.param(None, marks=pytest.mark.skip(reason=ABSENT), id="absent")]


def stream_with_error() -> bytes:
    """OpenRouter's, which reports an error in an event that also has a choice and usage. Skips where it is absent."""
    path = FOLDER / "odd" / "pydantic_test_openrouter_stream_error.jsonl"
    if not path.is_file():
        pytest.skip(ABSENT)
    raw: str = json.loads(path.read_text().splitlines()[0])["response_raw"]
    return raw.encode()


def _chunk_files() -> list[Recording]:
    found = []
    for path in sorted(FOLDER.glob("sse_raw/*.chunks.txt")):
        lines = [line for line in path.read_bytes().splitlines() if line.strip()]
        if b'"choices"' in lines[0]:
            raw = b"".join(b"data: " + line + b"\n\n" for line in lines) + b"data: [DONE]\n\n"
            found.append(Recording(path.name.removesuffix(".chunks.txt"), raw))
    return found


def _recorded() -> list[Recording]:
    found = []
    for path in sorted(FOLDER.glob("recorded/*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines()):
            answer = json.loads(line)
            raw = answer["response_raw"] or ""
            if "chat.completion.chunk" in raw and "data:" in raw:
                found.append(Recording(f"{path.stem}-{number}", raw.encode()))
    return found
