"""Whether an answer that was cut can be continued, and with what request: the model's own chat template is asked."""

import asyncio
from collections.abc import Mapping

from forebay.platform.relay.call import Call
from forebay.platform.relay.chain import Chain
from forebay.platform.relay.continuation import Members, Resumption, chat_of, members_of, resumption, unfaithful
from forebay.router import Prompter

LARGE = 1 << 16  # bytes of a request that are read and rendered aside


class Resumer:
    """`prompters` by model, of those whose templates are known."""

    def __init__(self, prompters: Mapping[str, Prompter]) -> None:
        self._prompters = prompters

    async def resume(self, call: Call, chain: Chain) -> Resumption | str:
        """`call` is the request as it came. What to ask the next engine for, or why the answer does not go on."""
        if len(call.inference.forward) <= LARGE:
            return self._resume(call, chain)
        return await asyncio.to_thread(self._resume, call, chain)

    def _resume(self, call: Call, chain: Chain) -> Resumption | str:
        members = members_of(call.inference)
        if chain.seam is None:
            return unfaithful(call.inference, members)
        if not any(endpoint.adapter.continues for endpoint in tuple(call.pool.endpoints.values())):
            return "engine"
        found = resumption(call.inference, members, chain.seam)
        if isinstance(found, Resumption) and found.cut.text and not self._continues(call, members, found.cut.text):
            return "template"
        return found

    def _continues(self, call: Call, members: Members, text: str) -> bool:
        if call.inference.api != "chat.completions":
            return True
        prompter = self._prompters.get(call.model)
        return prompter is not None and prompter.continues(chat_of(members), text)
