"""Conversations as their clients send them, remembered message by message, so that a turn costs what is new in it."""

from msgspec import Struct

from forebay.platform.api.layout import Prior, Turn
from forebay.router import Checkpoint, Memory, Node

_ROOT = ("chat",)
_CHECKPOINTS = 4  # a conversation under more templates or tools than this begins again
_CHECKPOINT_BYTES = 512


class Told(Struct):
    """What is known where a message ends: how much came before it, and where reading may go on, by what else the
    template saw. A node whose `messages` is 0 holds a body's beginning up to its messages."""

    messages: int
    commas: int
    nested: int
    checkpoints: dict[bytes, Checkpoint]

    @property
    def nbytes(self) -> int:
        return 200 + sum(_CHECKPOINT_BYTES + checkpoint.nbytes for checkpoint in self.checkpoints.values())


class Known(Struct, frozen=True):
    """The part of a body that was read before: the node of its last message, and the offset behind that."""

    node: Node[bytes, Told]
    end: int
    head: int

    @property
    def prior(self) -> Prior:
        told = self.node.value
        return Prior(self.head, self.end, told.messages, told.commas, told.nested)
