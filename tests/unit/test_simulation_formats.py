"""Recorded workloads read from files; files that are none are refused with what is wrong, and where."""

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from forebay.router.simulation.formats import read
from forebay.router.simulation.workload import PRIVATE, Instance, Turn, WorkloadError

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def request(ids: list[int], **more: Any) -> dict[str, Any]:
    return {"t": 0.0, "in": 64 * len(ids), "out": 70, "hash_ids": ids, "stop": "end_turn", **more}


def session(requests: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"id": "s1", "block_size": 64, "tool_tokens": 128, "system_tokens": 0, "requests": requests, **more}


def written(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def test_sessions_share_tools_and_system_prompt_and_nothing_else(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", session([request([1, 2, 3])]), session([request([1, 2, 3])], id="s2"))
    one, two = (found.turns[0].blocks for found in read(file).conversations)
    assert one.tolist()[:2] == two.tolist()[:2]
    assert max(one.tolist()[:2]) < PRIVATE <= one[2]


def test_an_answer_leaves_behind_what_the_next_prompt_has_of_it(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", session([request([1, 2, 3], stop="tool_use"), request([1, 2, 3, 4, 5])]))
    first, second = read(file).conversations[0].turns
    assert first.kept is not None
    assert first.kept.tolist() == second.blocks.tolist()[:4]  # 70 tokens of answer make one whole block
    assert (first.returns, second.returns) == (True, False)


def test_a_sub_agent_is_called_by_the_turn_before_it_which_is_not_waited_for_twice(tmp_path: Path) -> None:
    """As recorded: its `t` is when its result came, and the next turn's pause spans it."""
    agent = {
        "t": 100.0, "duration_ms": 80_000, "agent_id": "agent_1", "tool_tokens": 64, "system_tokens": 0,
        "requests": [request([7, 8])],
    }  # fmt: skip
    requests = [request([1, 2, 3], api_time=15.0), agent, request([1, 2, 3, 4], t=110.0, think_time=95.0)]
    (found,) = read(written(tmp_path / "a.jsonl", session(requests))).conversations
    (call,) = found.turns[0].calls
    assert call.after_s == pytest.approx(5.0)  # it began at 20 s, the turn had ended at 15 s
    assert found.turns[1].pause_s == pytest.approx(10.0)  # of 95 s, 85 were the sub-agent's
    assert read(tmp_path / "a.jsonl").requests == 3


def test_records_may_name_their_tier_and_tenant(tmp_path: Path) -> None:
    agent = {"t": 9.0, "duration_ms": 1, "agent_id": "agent_1", "requests": [request([7])]}
    asked = session([request([1]), agent, request([1, 2])], tier="batch", tenant="acme")
    one, other = read(written(tmp_path / "a.jsonl", asked, session([request([1])], tenant=None))).conversations
    assert [(one.tier, one.tenant), (other.tier, other.tenant)] == [("batch", "acme"), ("default", "")]
    called = Instance("x", one).called(one.turns[0].calls[0]).conversation
    assert (called.tier, called.tenant) == ("batch", "acme")
    single = {"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1], "tier": "fast"}
    assert [one.tier for one in read(written(tmp_path / "b.jsonl", single)).conversations] == ["fast"]
    table = "TIMESTAMP,ContextTokens,GeneratedTokens,Tier,Tenant\n2026-01-01 00:00:00,9,1,fast,acme\n"
    (tmp_path / "c.csv").write_text(table)
    assert [(one.tier, one.tenant) for one in read(tmp_path / "c.csv").conversations] == [("fast", "acme")]
    with pytest.raises(WorkloadError, match="names are texts"):
        read(written(tmp_path / "d.jsonl", {**single, "tier": 5}))


def test_a_pause_is_bounded_and_a_missing_one_is_none(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", session([request([1]), request([1, 2], think_time=1e6)]))
    assert [turn.pause_s for turn in read(file).conversations[0].turns] == [0.0, 600.0]


def test_mooncake_ids_that_are_large_hashes_are_kept_apart(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 3000, "input_length": 1024, "output_length": 5, "hash_ids": [1 << 62, (1 << 62) + 1]},
        {"timestamp": 1000, "input_length": 1024, "output_length": 5, "hash_ids": [1 << 62, 9]},
    ]
    found = read(written(tmp_path / "m.jsonl", *lines))
    assert [one.begins_s for one in found.conversations] == [0.0, 2.0]
    early, late = (one.turns[0].blocks.tolist() for one in found.conversations)
    assert early[0] == late[0]
    assert early[1] != late[1]
    assert found.timed


def test_azure_prompts_share_nothing(tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,64,44\r\n"
        "2023-11-16 18:15:50.99,64,9\r\n"
    )
    first, second = read(file).conversations
    assert second.begins_s == pytest.approx(4.30941)
    assert not set(first.turns[0].blocks.tolist()) & set(second.turns[0].blocks.tolist())


def test_a_compressed_file_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl.zst"
    file.write_bytes(zstandard.compress(json.dumps(session([request([1])])).encode()))
    assert read(file).name == "a.jsonl"


HEAD = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
WRONG = {
    "empty": (b"", "is empty"),
    "blank": (b"\n\n", "line 1 has neither"),
    "text": (b"hello\nworld", "line 1 is not JSON"),
    "list": (b"[1, 2]", "line 1 is not a JSON object"),
    "other": (b'{"a": 1}', "neither `requests`"),
    "bytes": (bytes(range(256)), "not JSON"),
    "later": (b'{"hash_ids": [], "input_length": 1, "output_length": 1, "timestamp": 1}\n{oops', "line 2 is not JSON"),
    "no times": (b'{"hash_ids": [], "input_length": 1, "output_length": 1}',
                 "trace: line 1: the member 'timestamp' is missing"),
    "later times": (b'{"hash_ids": [], "input_length": 1, "output_length": 1, "timestamp": 1}\n{"hash_ids": []}',
                    "trace: line 2: the member 'input_length' is missing"),
    "ids": (b'{"hash_ids": ["x"], "input_length": null, "output_length": 1, "timestamp": 1}', "TypeError"),
    "no requests": (b'{"id": "a", "block_size": 64, "requests": []}', "no requests"),
    "no block": (b'{"id": "a", "block_size": 0, "requests": []}', "not a workload of its kind"),
    "azure time": (HEAD + b"yesterday,1,2",
                   "trace: line 2, column TIMESTAMP: expected a time such as 2023-11-16 18:15:46.68, got 'yesterday'"),
    "azure count": (HEAD + b"2023-11-16 18:15:46,1,2\n\n2023-11-16 18:15:47,many,2",
                    "trace: line 4, column ContextTokens: expected a whole number from 0 to 100000000, got 'many'"),
    "azure negative": (HEAD + b"2023-11-16 18:15:46,1,-2", "line 2, column GeneratedTokens: expected a whole number"),
    "azure short": (HEAD + b"2023-11-16 18:15:46,1", "line 2, column GeneratedTokens: expected a whole number"),
    "azure huge": (HEAD + b"2023-11-16 18:15:46," + b"9" * 5000 + b",1", "line 2, column ContextTokens: expected"),
    "azure cell": (HEAD + b"2023-11-16 18:15:46,1," + b"x" * 200_000, "trace: line 2: field larger than field limit"),
    "azure head": (b"TIMESTAMP,Other\n2023-11-16 18:15:46,1",
                   "line 1 lacks the column ContextTokens; expected TIMESTAMP,ContextTokens,GeneratedTokens"),
    "other table": (b"time,tokens\n1,2", "line 1 is not JSON, nor the head of a table (TIMESTAMP,ContextTokens,"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_no_workload_says_why(name: str, tmp_path: Path) -> None:
    data, why = WRONG[name]
    file = tmp_path / "trace"
    file.write_bytes(data)
    with pytest.raises(WorkloadError) as raised:
        read(file)
    assert why in str(raised.value)
    assert str(file) in str(raised.value)


def test_a_file_that_only_claims_to_be_compressed_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.zst").write_bytes(b"nothing of the kind")
    with pytest.raises(WorkloadError, match="not a zstd file"):
        read(tmp_path / "a.zst")


@pytest.mark.parametrize(("file", "requests"), [
    ("agent_coding/claude_code_sessions.jsonl.zst", 17_661),
    ("mooncake/synthetic_trace.jsonl.zst", 3_993),
    ("azure/AzureLLMInferenceTrace_conv.csv.zst", 19_366),
])  # fmt: skip
def test_recorded_workloads_are_read_whole(file: str, requests: int) -> None:
    if not (TRACES / file).is_file():
        pytest.skip(f"no recorded workloads: {TRACES / file} is absent")
    found = read(TRACES / file)
    assert found.requests == requests
    assert all(isinstance(turn, Turn) and turn.tokens > 0 for one in found.conversations for turn in one.turns)
