"""What the models' prompts are read with: tokenizers and chat templates, loaded once at the start."""

import asyncio
import logging
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from forebay.platform.config.model import Config, Model
from forebay.router import (
    Ladder,
    Memory,
    Prompter,
    Template,
    TemplateError,
    Tokenizer,
    TokenizerError,
    Weights,
    untemplated,
)

log = logging.getLogger(__name__)


class Readers(Struct, frozen=True):
    """Prompters of the models whose tokenizer could be loaded, and why each model's prompts are read as they are."""

    prompters: dict[str, Prompter]
    reasons: dict[str, str]


async def load_readers(config: Config, weights: Weights, memory: Memory) -> Readers:
    """Logs what could not be loaded: such a model serves all the same, and its prompts are read in a lesser way."""
    readers = Readers({}, {})
    for model in config.models:
        if model.tokenizer is None:
            readers.reasons[model.name] = "no tokenizer is configured: an engine is asked, or tokens are guessed"
            continue
        try:
            readers.prompters[model.name] = reader = await asyncio.to_thread(_load, model, weights, memory)
        except TokenizerError as error:
            log.error("model %s: %s; its prompts are tokenized by an engine, or guessed", model.name, error)
            readers.reasons[model.name] = str(error)
        else:
            log.info("model %s: %s", model.name, reader.reason)
            readers.reasons[model.name] = reader.reason
    return readers


def _load(model: Model, weights: Weights, memory: Memory) -> Prompter:
    assert model.tokenizer is not None
    tokenizer = Tokenizer.load(Path(model.tokenizer))
    source = tokenizer.chat_template
    if model.chat_template is not None:
        try:
            source = Path(model.chat_template).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"its chat template cannot be read: {error}") from error
    template = None
    if why := _own_renderer(Path(model.tokenizer)):
        log.warning("model %s: %s, so its chats are only guessed", model.name, why)
    elif source is not None:
        template = _template(model.name, source, tokenizer)
    return Prompter(model.name, Ladder(tokenizer), template, weights, memory, today=_today)


def _today() -> datetime:
    """Local time, as engines tell their templates: without a zone, which would be looked up in a file each time."""
    return datetime.now()  # noqa: DTZ005


def _own_renderer(directory: Path) -> str | None:
    """Why engines do not use the template of the model in `directory`."""
    try:
        config = msgspec.json.decode((directory / "config.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        config = {}
    return untemplated(config, (file.name for file in directory.iterdir()))


def _template(model: str, source: str, tokenizer: Tokenizer) -> Template | None:
    try:
        return Template(source, special_tokens=tokenizer.special_tokens, clock=time.thread_time)
    except TemplateError as error:
        log.error("model %s: its chat template does not compile, so its chats are only guessed: %s", model, error)
        return None
