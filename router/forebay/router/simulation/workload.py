"""What a fleet is asked (pure): conversations of turns, each turn a chain of named blocks."""

from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from forebay.router.simulation.blocks import Blocks
from forebay.router.tiers import DEFAULT

PRIVATE = 1 << 22  # names from here on belong to one conversation; below, they are the same in all


class WorkloadError(Exception):
    """The file is not a workload. The message says what is wrong with it, and where."""


class Turn(Struct):
    """One request. `pause_s`: seconds from the end of the turn before, and of all it called (or from the conversation's
    beginning). `kept`: blocks of the next turn that this one's answer leaves behind, its prompt included. `returns`: it
    ended in a tool call. `calls`: sub-agents that begin after it, while the conversation waits for them."""

    blocks: Blocks
    tokens: int
    output: int
    pause_s: float = 0.0
    kept: Blocks | None = None
    returns: bool = False
    calls: "list[Call]" = []


class Conversation(Struct):
    """`begins_s`: when, for workloads that recorded it; None where arrivals are to be chosen. `names`: how many names
    its private blocks have, those of its sub-agents included: `PRIVATE` and on. `tier`, `tenant`: as in
    `routing.Ask`."""

    name: str
    turns: list[Turn]
    begins_s: float | None = None
    names: int = 0
    tier: str = DEFAULT
    tenant: str = ""


class Call(Struct):
    """A sub-agent, and seconds from the end of the turn that calls it until it begins."""

    after_s: float
    conversation: Conversation


class Workload(Struct):
    """`block`: tokens of one block."""

    name: str
    block: int
    conversations: list[Conversation]

    @property
    def timed(self) -> bool:
        """Whether it says when each conversation begins."""
        return all(one.begins_s is not None for one in self.conversations)

    @property
    def requests(self) -> int:
        return sum(1 for one in self.conversations for _ in every_turn(one))


class Instance(Struct, frozen=True):
    """A conversation as one of those who hold it. The same recording may be under way several times: each instance has
    private blocks of its own (`offset` is added to their names), and shares those that all conversations share."""

    name: str
    conversation: Conversation
    offset: int = 0

    def turn(self, number: int) -> Turn:
        turn = self.conversation.turns[number]
        if not self.offset:
            return turn
        kept = None if turn.kept is None else own(turn.kept, self.offset)
        return Turn(
            own(turn.blocks, self.offset), turn.tokens, turn.output, turn.pause_s, kept, turn.returns, turn.calls
        )

    def called(self, call: Call) -> "Instance":
        """In its caller's tier."""
        mine = self.conversation
        conversation = replace(call.conversation, tier=mine.tier, tenant=mine.tenant)
        return Instance(f"{self.name}/{conversation.name}", conversation, self.offset)


def own(blocks: Blocks, offset: int) -> Blocks:
    """The names of blocks in an instance with such an offset."""
    return np.where(blocks >= PRIVATE, blocks + offset, blocks)


def every_turn(conversation: Conversation) -> Iterator[Turn]:
    """Its own and its sub-agents'."""
    for turn in conversation.turns:
        yield turn
        for call in turn.calls:
            yield from every_turn(call.conversation)
