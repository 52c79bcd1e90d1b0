"""Recorded workloads as what a fleet is asked (pure): conversations of turns, each turn a chain of named blocks.

Formats: one Claude Code session a line (callanjfox/kv-cache-tester), one request a line with chained block ids
(Mooncake, FAST '25), and a table of arrivals with lengths alone (Azure), whose prompts share nothing.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zstandard
from msgspec import Struct

from forebay.router.simulation.blocks import Blocks

LONGEST_PAUSE_S = 600.0  # between two turns; who pauses for longer has left, for a cache
_AZURE_BLOCK = 16


class WorkloadError(Exception):
    """The file is not a workload. The message says what is wrong with it, and where."""


class Turn(Struct):
    """One request. `pause_s`: seconds from the end of the turn before (or the conversation's beginning). `kept`: blocks
    of the next turn that this one's answer leaves behind, its prompt included. `returns`: it ended in a tool call."""

    blocks: Blocks
    tokens: int
    output: int
    pause_s: float = 0.0
    kept: Blocks | None = None
    returns: bool = False


class Conversation(Struct):
    """`begins_s`: when, for workloads that recorded it; None where arrivals are to be chosen."""

    name: str
    turns: list[Turn]
    begins_s: float | None = None


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
        return sum(len(one.turns) for one in self.conversations)


def read(path: Path) -> Workload:
    """Raises `WorkloadError`, `OSError`."""
    data = path.read_bytes()
    if path.suffix == ".zst":
        try:
            data = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(io.BytesIO(data)).read()
        except zstandard.ZstdError as error:
            raise WorkloadError(f"{path} is not a zstd file: {error}") from error
    name = path.name.removesuffix(".zst")
    if data.startswith(b"TIMESTAMP,"):
        return Workload(name, _AZURE_BLOCK, list(_azure(data.decode())))
    lines = data.splitlines()
    try:
        first = msgspec.json.decode(lines[0]) if lines else None
    except msgspec.DecodeError as error:
        raise WorkloadError(f"{path}: line 1 is not JSON: {error}") from error
    reader = _FORMATS.get("requests" if isinstance(first, dict) and "requests" in first else "hash_ids")
    if not isinstance(first, dict) or not {"requests", "hash_ids"} & first.keys():
        raise WorkloadError(f"{path}: line 1 has neither `requests` (agent sessions) nor `hash_ids` (Mooncake)")
    assert reader is not None
    try:
        return reader(name, (msgspec.json.decode(line) for line in lines if line.strip()))
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.DecodeError) as error:
        raise WorkloadError(f"{path}: not a workload of its kind: {type(error).__name__} {error}") from error


class _Names:
    """Names of blocks that are unique over the conversations of a workload."""

    def __init__(self) -> None:
        self._next = 1

    def of(self, count: int) -> int:
        first, self._next = self._next, self._next + count
        return first


def _agents(name: str, sessions: Iterable[dict[str, Any]]) -> Workload:
    names = _Names()
    shared: dict[tuple[int, int], int] = {}  # tools and system prompts of equal size are taken to be the same
    block = 0
    found: list[Conversation] = []
    for session in sessions:
        block = block or session["block_size"]
        if session["block_size"] != block:
            raise ValueError(f"session {session['id']} has blocks of {session['block_size']} tokens, others of {block}")
        found += _session(session, block, names, shared)
    return Workload(name, block or 64, found)


def _session(
    session: dict[str, Any], block: int, names: _Names, shared: dict[tuple[int, int], int]
) -> Iterator[Conversation]:
    """The session's own requests, and each sub-agent's as a conversation that begins with its first."""
    key = session.get("tool_tokens", 0), session.get("system_tokens", 0)
    common = sum(key) // block
    if key not in shared:
        shared[key] = names.of(common)
    local = names.of(1 + max((max(one["hash_ids"], default=0) for one in _requests(session)), default=0))
    own = [one for one in session["requests"] if "hash_ids" in one]
    yield Conversation(session["id"], _turns(own, block, local, shared[key], common))
    for nested in session["requests"]:
        if "requests" in nested:
            turns = [one for one in nested["requests"] if "hash_ids" in one]
            if turns:
                yield Conversation(f"{session['id']}/{nested['agent_id']}", _turns(turns, block, local, 0, 0))


def _requests(session: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for one in session["requests"]:
        if "hash_ids" in one:
            yield one
        yield from (inner for inner in one.get("requests", ()) if "hash_ids" in inner)


def _turns(requests: Sequence[dict[str, Any]], block: int, local: int, first: int, common: int) -> list[Turn]:
    turns: list[Turn] = []
    for request in requests:
        ids = np.array(request["hash_ids"], np.int64)
        blocks = local + ids
        alike = min(common, len(ids))
        if alike and (ids[:alike] == np.arange(1, alike + 1)).all():  # the session begins with tools and system prompt
            blocks[:alike] = first + np.arange(alike)
        pause = min(float(request.get("think_time") or 0.0), LONGEST_PAUSE_S)
        returns = request["stop"] == "tool_use"
        turn = Turn(blocks, int(request["in"]), max(1, int(request["out"])), pause, returns=returns)
        if turns:
            _keep(turns[-1], turn, block)
        turns.append(turn)
    return turns


def _keep(turn: Turn, after: Turn, block: int) -> None:
    """What the answer leaves behind of the next prompt, if that goes on from it."""
    whole = min(turn.tokens // block, len(turn.blocks))
    if len(after.blocks) > whole and (after.blocks[:whole] == turn.blocks[:whole]).all():
        kept = min(len(after.blocks), (turn.tokens + turn.output) // block)
        if kept > whole:
            turn.kept = after.blocks[:kept]


def _mooncake(name: str, requests: Iterable[dict[str, Any]]) -> Workload:
    """Each request is a conversation of its own: who sent it is not recorded."""
    found = [
        Conversation(
            str(number),
            [Turn(np.array(one["hash_ids"], np.int64), int(one["input_length"]), max(1, int(one["output_length"])))],
            one["timestamp"] / 1000,
        )
        for number, one in enumerate(requests)
    ]
    return Workload(name, 512, found)


def _azure(text: str) -> Iterator[Conversation]:
    names = _Names()
    began: float | None = None
    for number, row in enumerate(csv.DictReader(io.StringIO(text))):
        stamp = row["TIMESTAMP"].strip().replace(" ", "T")
        at = datetime.fromisoformat(stamp[:26]).timestamp()
        began = at if began is None else began
        tokens = max(1, int(row["ContextTokens"]))
        blocks = names.of(tokens // _AZURE_BLOCK + 1) + np.arange(tokens // _AZURE_BLOCK, dtype=np.int64)
        yield Conversation(str(number), [Turn(blocks, tokens, max(1, int(row["GeneratedTokens"])))], at - began)


_FORMATS = {"requests": _agents, "hash_ids": _mooncake}
