"""What a prompt comes to: how many tokens, and the keys under which engines may hold its beginnings."""

from enum import StrEnum

from msgspec import Struct


class Rung(StrEnum):
    """How a prompt's tokens are found, best first."""

    SEGMENTS = "segments"  # exactly, and what lies between special tokens only once
    WHOLE = "whole"  # exactly, each text as a whole
    ENGINE = "engine"  # exactly, by asking an engine
    BYTES = "bytes"  # guessed: four bytes are a token, and KV events never match


class Prompt(Struct, frozen=True):
    """`keys`: the seeded prefix keys at every 32nd token, little-endian uint64. `tokens` is of the whole prompt; where
    it is not `exact`, a guess."""

    tokens: int
    keys: bytes = b""
    rung: Rung = Rung.BYTES
    exact: bool = False
