"""Whether an engine reads a model's texts as the front door does, asked once an engine can answer.

A tokenizer's files can be older than the engine's, or be read in another way (transformers 5 rebuilds some tokenizers
and leaves out their normalizers); prompts counted wrongly would be placed wrongly, and refused wrongly.
"""

import asyncio
import logging
from collections.abc import Mapping

from prometheus_client import Gauge

from forebay.platform.api.engine_tokens import EngineTokens
from forebay.platform.catalogue import Catalogue, Entry
from forebay.router import Prompter

log = logging.getLogger(__name__)
RETRY_S = 2.0
AGAIN_S = 600.0  # engines are replaced while the front door runs
_AGREES = Gauge("forebay_prompt_tokens_agree", "1 while engines make the same tokens of a text, 0 if others", ["model"])


class Agreement:
    """`disputed` has the models whose engines make other tokens: their prompts are tokenized by an engine."""

    def __init__(self, readers: Mapping[str, Prompter], catalogue: Catalogue, engines: EngineTokens) -> None:
        self._readers = readers
        self._entries = [entry for entry in catalogue.entries if entry.model.name in readers]
        self._engines = engines
        self.disputed: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            known = [await self._compare(entry) for entry in self._entries]
            await asyncio.sleep(AGAIN_S if all(known) else RETRY_S)

    async def _compare(self, entry: Entry) -> bool:
        """False where no engine could be asked."""
        name, reader = entry.model.name, self._readers[entry.model.name]
        theirs = await self._engines.text(entry.pool, reader.probe)
        if theirs is None:
            return not self._engines.can_ask(entry.pool)
        agree = theirs == reader.probe_ids()
        _AGREES.labels(model=name).set(agree)
        if agree:
            self.disputed.discard(name)
        elif name not in self.disputed:
            self.disputed.add(name)
            log.error("model %s: its engines make other tokens of a text than its configured tokenizer: they are asked "
                      "from now on. Give the front door the tokenizer that they use", name)  # fmt: skip
        return True
