"""Files of recorded requests, read as workloads.

Formats: one Claude Code session a line (callanjfox/kv-cache-tester), one request a line with chained block ids
(Mooncake, FAST '25), and a table of arrivals with lengths alone (Azure), whose prompts share nothing. Each may be
compressed with zstd.
"""

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from forebay.router.simulation.blocks import Blocks
from forebay.router.simulation.workload import PRIVATE, Call, Conversation, Turn, Workload, WorkloadError
from forebay.router.tiers import DEFAULT

LONGEST_PAUSE_S = 600.0  # between two turns; who pauses for longer has left, for a cache
_AZURE_BLOCK, _MOONCAKE_BLOCK = 16, 512
_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"
_WINDOW = 1 << 31  # of zstd's: the traces are compressed with --long
_FAULTS = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, msgspec.DecodeError)
_Record = dict[str, Any]


def read(path: Path) -> Workload:
    """Raises `WorkloadError`, `OSError`."""
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = _unpacked(path, data)
    name = path.name.removesuffix(".zst")
    lines = data.splitlines()
    if not lines:
        raise WorkloadError(f"{path} is empty")
    records = _Records(path, lines)
    try:
        if b"TIMESTAMP" in lines[0].split(b","):
            found = Workload(name, _AZURE_BLOCK, list(_azure(path, data.decode())))
        else:
            found = _reader(path, lines[0])(name, records)
    except _FAULTS as error:
        where = f"{path}: line {records.line}" if records.line else path
        if isinstance(error, KeyError):
            raise WorkloadError(f"{where}: the member {error} is missing") from error
        raise WorkloadError(f"{where}: not a workload of its kind: {type(error).__name__} {error}") from error
    found.conversations = [one for one in found.conversations if one.turns]
    if not found.conversations:
        raise WorkloadError(f"{path} has no requests")
    return found


def _unpacked(path: Path, data: bytes) -> bytes:
    try:
        import zstandard  # noqa: PLC0415 - only who reads such files needs it
    except ImportError:
        raise WorkloadError(
            f"{path} is compressed: unpack it (zstd -d --long=31), or `pip install zstandard` to have it read as it is"
        ) from None
    try:
        return zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(io.BytesIO(data)).read()
    except zstandard.ZstdError as error:
        raise WorkloadError(f"{path} is not a zstd file: {error}") from error


class _Records:
    """`line`: that of the record which is being read, from 1."""

    def __init__(self, path: Path, lines: Sequence[bytes]) -> None:
        self._path = path
        self._lines = lines
        self.line = 0

    def __iter__(self) -> Iterator[_Record]:
        for number, text in enumerate(self._lines, 1):
            self.line = number
            if text.strip():
                where = f"{self._path}: line {self.line}"
                try:
                    record = msgspec.json.decode(text)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    nor = f", nor the head of a table ({_HEAD})" if self.line == 1 else ""
                    raise WorkloadError(f"{where} is not JSON{nor}: {error}") from error
                if not isinstance(record, dict):
                    raise WorkloadError(f"{where} is not a JSON object")
                yield record


def _reader(path: Path, line: bytes) -> Any:
    first = next(iter(_Records(path, [line])), {})
    for member, reader in (("requests", _agents), ("hash_ids", _mooncake)):
        if member in first:
            return reader
    raise WorkloadError(
        f"{path}: line 1 has neither `requests` (agent sessions) nor `hash_ids` (Mooncake), and is not the head of an "
        f"Azure table ({_HEAD})"
    )


# -- agent sessions


def _agents(name: str, sessions: Iterable[_Record]) -> Workload:
    shared = _Shared()
    block = 0
    found: list[Conversation] = []
    for session in sessions:
        block = block or int(session["block_size"])
        if block < 1:
            raise ValueError(f"session {session['id']} has blocks of {block} tokens")
        if session["block_size"] != block:
            raise ValueError(f"session {session['id']} has blocks of {session['block_size']} tokens, others of {block}")
        names = 1 + max((max(one["hash_ids"], default=0) for one in _requests(session)), default=0)
        tier, tenant = _whose(session)
        turns = _turns(session, block, shared)
        found.append(Conversation(str(session["id"]), turns, None, names, tier, tenant))
    return Workload(name, block or 64, found)


class _Shared:
    """Names for the blocks of tools and system prompts: those of equal size are taken to be the same everywhere."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], int] = {}
        self._next = 0

    def names(self, of: _Record, block: int) -> Blocks:
        key = int(of.get("tool_tokens", 0)), int(of.get("system_tokens", 0))
        blocks = sum(key) // block
        if key not in self._first:
            self._first[key], self._next = self._next, self._next + blocks
            if self._next > PRIVATE:
                raise ValueError(f"more than {PRIVATE} blocks of system prompts")
        return self._first[key] + np.arange(blocks, dtype=np.int64)


def _requests(session: _Record) -> Iterator[_Record]:
    for one in session["requests"]:
        if "hash_ids" in one:
            yield one
        yield from (inner for inner in one.get("requests", ()) if "hash_ids" in inner)


def _turns(of: _Record, block: int, shared: _Shared) -> list[Turn]:
    """The requests of a session or a sub-agent, with the sub-agents that each calls."""
    common = shared.names(of, block)
    turns: list[Turn] = []
    done = 0.0  # when the last one ended, and when all that it called had
    ended = 0.0
    for one in of["requests"]:
        if "requests" in one:
            inner = _turns(one, block, shared)
            if turns and inner:
                begins = float(one["t"]) - float(one["duration_ms"]) / 1000  # `t` is when its result came
                after = min(max(0.0, begins - ended), LONGEST_PAUSE_S)
                turns[-1].calls.append(Call(after, Conversation(str(one["agent_id"]), inner)))
                done = max(done, float(one["t"]))
        elif "hash_ids" in one:
            pause = float(one.get("think_time") or 0.0) - max(0.0, done - ended)
            turns.append(_turn(one, common, min(max(0.0, pause), LONGEST_PAUSE_S)))
            ended = float(one["t"]) + float(one.get("api_time") or 0.0)
            done = ended
    for turn, after_it in itertools.pairwise(turns):
        _keep(turn, after_it, block)
    return turns


def _turn(one: _Record, common: Blocks, pause_s: float) -> Turn:
    ids = np.array(one["hash_ids"], np.int64)
    blocks = ids + PRIVATE
    alike = min(len(common), len(ids))
    if alike and (np.diff(ids[:alike]) == 1).all():  # it begins with tools and system prompt
        blocks[:alike] = common[:alike]
    tokens, output = max(1, int(one["in"])), max(1, int(one["out"]))
    return Turn(blocks, tokens, output, pause_s, returns=one.get("stop") == "tool_use", calls=[])


def _keep(turn: Turn, after: Turn, block: int) -> None:
    """What the answer leaves behind of the next prompt, if that goes on from it."""
    whole = min(turn.tokens // block, len(turn.blocks))
    if len(after.blocks) > whole and (after.blocks[:whole] == turn.blocks[:whole]).all():
        kept = min(len(after.blocks), (turn.tokens + turn.output) // block)
        if kept > whole:
            turn.kept = after.blocks[:kept]


# -- single requests


def _mooncake(name: str, requests: Iterable[_Record]) -> Workload:
    """Each request is a conversation of its own: who sent it is not recorded."""
    names: dict[int, int] = {}  # small ones for the recorded ids, which may be hashes
    found = []
    for number, one in enumerate(requests):
        blocks = np.array([names.setdefault(block, len(names)) for block in one["hash_ids"]], np.int64)
        turn = Turn(blocks, max(1, int(one["input_length"])), max(1, int(one["output_length"])))
        found.append(Conversation(str(number), [turn], float(one["timestamp"]) / 1000, 0, *_whose(one)))
    return Workload(name, _MOONCAKE_BLOCK, _from_zero(found))


def _azure(path: Path, text: str) -> Iterator[Conversation]:
    rows = csv.DictReader(io.StringIO(text))
    if absent := [name for name in _AZURE_COLUMNS if name not in (rows.fieldnames or ())]:
        raise WorkloadError(f"{path}: line 1 lacks the column {absent[0]}; expected {_HEAD}")
    first, found = 0, []
    for number, row in enumerate(_rows(path, rows)):
        cells = {
            name: _cell(f"{path}: line {rows.line_num}, column {name}", row[name], *kind)
            for name, kind in _AZURE_COLUMNS.items()
        }
        at, tokens, output = cells.values()
        blocks = first + np.arange(int(tokens) // _AZURE_BLOCK, dtype=np.int64)
        first += len(blocks)
        turn = Turn(blocks, max(1, int(tokens)), max(1, int(output)))
        found.append(Conversation(str(number), [turn], at, 0, *_whose(row)))
    yield from _from_zero(found)


def _rows(path: Path, rows: "csv.DictReader[str]") -> Iterator[dict[str, str]]:
    try:
        yield from rows
    except csv.Error as error:
        raise WorkloadError(f"{path}: line {rows.line_num + 1}: {error}") from error


def _moment(text: str) -> float:
    return datetime.fromisoformat(text.replace(" ", "T")[:26]).timestamp()


def _count(text: str) -> float:
    number = int(text)
    if not 0 <= number <= _MOST_TOKENS:
        raise ValueError
    return number


_MOST_TOKENS = 10**8  # of one request: more is a mistake, and would fill the memory
_AZURE_COLUMNS: dict[str, tuple[Callable[[str], float], str]] = {
    "TIMESTAMP": (_moment, "a time such as 2023-11-16 18:15:46.68"),
    "ContextTokens": (_count, f"a whole number from 0 to {_MOST_TOKENS}"),
    "GeneratedTokens": (_count, f"a whole number from 0 to {_MOST_TOKENS}"),
}


def _cell(where: str, text: str | None, read_as: Callable[[str], float], expected: str) -> float:
    if text is None:
        raise WorkloadError(f"{where}: expected {expected}, but the line ends before it")
    try:
        return read_as(text.strip())
    except (ValueError, OverflowError):
        raise WorkloadError(f"{where}: expected {expected}, got {text[:40]!r}") from None


def _whose(record: _Record) -> tuple[str, str]:
    """The tier and the tenant that a record names; in a table, with a capital."""
    tier = record.get("tier", record.get("Tier")) or DEFAULT
    tenant = record.get("tenant", record.get("Tenant")) or ""
    if not (isinstance(tier, str) and isinstance(tenant, str)):
        raise TypeError(f"tier {tier!r} of tenant {tenant!r}: names are texts")
    return tier, tenant


def _from_zero(found: list[Conversation]) -> list[Conversation]:
    """In the order in which they came, the first at 0."""
    found.sort(key=lambda one: one.begins_s or 0.0)
    began = (found[0].begins_s or 0.0) if found else 0.0
    for one in found:
        one.begins_s = (one.begins_s or 0.0) - began
    return found
