"""`forebay simulate` as it is typed."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from forebay.platform.cli import main

POOL = ("--replicas", "2", "--prefill-rate", "2000", "--kv-tokens", "20000", "--processes", "1")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Requests that come one a second; every second one begins with the same 4,096 tokens."""
    lines = []
    for number in range(60):
        ids = [*range(8)] if number % 2 else []
        record = {"timestamp": number * 1000, "input_length": 512 * (len(ids) + 1), "output_length": 20}
        lines.append(json.dumps(record | {"hash_ids": [*ids, 100 + number]}))
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(lines))
    return file


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, args)])


def test_a_table_compares_every_policy_and_says_what_was_possible(trace: Path) -> None:
    shown = run("--trace", trace, *POOL)
    assert shown.exit_code == 0, shown.output
    for name in ("forebay", "llm-d", "round-robin", "least-requests", "session-hash", "cache-aware-tree", "dynamo"):
        assert any(line.startswith(name) for line in shown.output.splitlines())
    assert "60 requests" in shown.output
    assert "Reuse cannot be above" in shown.output


def test_json_has_the_figures_and_nothing_else(trace: Path) -> None:
    shown = run("--trace", trace, *POOL, "--policies", "llm-d,forebay", "--seeds", "2", "--json")
    found = json.loads(shown.stdout)
    assert list(found["policies"]) == ["llm-d", "forebay"]
    for figures in found["policies"].values():
        assert 0 < figures["ttft_p50_s"] <= figures["ttft_p95_s"] <= figures["ttft_p99_s"]
        assert 0 < figures["reuse"] <= found["bounds"]["clairvoyant"] <= found["bounds"]["infinite"] < 1
        assert figures["requests"] == 45  # of 60 in as many seconds, the first quarter does not count


def test_the_same_seed_gives_the_same_figures(trace: Path) -> None:
    first, second = (run("--trace", trace, *POOL, "--policies", "forebay,dynamo", "--json").stdout for _ in range(2))
    assert first == second


def test_several_processes_give_what_one_does(trace: Path) -> None:
    args = ("--trace", trace, *POOL[:-2], "--policies", "llm-d,dynamo", "--json")
    assert run(*args, "--processes", "2").stdout == run(*args, "--processes", "1").stdout


def test_a_plot_has_a_curve_for_each_policy(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "waits.svg"
    assert run("--trace", trace, *POOL, "--policies", "llm-d,forebay", "--plot", out).exit_code == 0
    drawing = ElementTree.fromstring(out.read_text())
    curves = drawing.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(curve.attrib["points"].split()) for curve in curves] == [101, 101]
    assert {"llm-d", "forebay"} <= {text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")}


def test_a_pool_that_falls_behind_is_called_so(trace: Path) -> None:
    shown = run("--trace", trace, "--replicas", "1", "--prefill-rate", "100", "--kv-tokens", "20000",
                "--policies", "least-requests")  # fmt: skip
    assert "more and more wait" in shown.output


TIERS = """
tiers:
  - {name: fast, rank: 0, ttft: 2, queue: 2}
  - {name: plain, rank: 1, ttft: 8, queue: 6, default: true}
  - {name: batch, rank: 2, queue: 60, shed: shed, share: 0.1}
"""


@pytest.fixture
def tiers(tmp_path: Path) -> Path:
    file = tmp_path / "forebay.yaml"
    file.write_text("apiVersion: forebay.dev/v1" + TIERS)
    return file


def crowded(tmp_path: Path, *tiers: str | None) -> Path:
    """Three new prompts a second of 512 tokens, for one engine that computes less than two, in these tiers by turns."""
    lines = []
    for number in range(240):
        record = {"timestamp": number * 333, "input_length": 512, "output_length": 4, "hash_ids": [number]}
        name = tiers[number % len(tiers)]
        lines.append(json.dumps(record | ({} if name is None else {"tier": name, "tenant": f"of {name}"})))
    file = tmp_path / "crowd.jsonl"
    file.write_text("\n".join(lines))
    return file


SMALL = ("--replicas", "1", "--prefill-rate", "900", "--kv-tokens", "20000", "--processes", "1")


def test_with_tiers_it_tells_what_becomes_of_each(tmp_path: Path, tiers: Path) -> None:
    trace = crowded(tmp_path, "fast", None, "auto", "batch")  # a quarter, a half, a quarter
    args = ("--trace", trace, *SMALL, "--policies", "forebay,least-requests", "--tiers", tiers)
    found = {name: one["tiers"] for name, one in json.loads(run(*args, "--json").stdout)["policies"].items()}
    for by_tier in found.values():
        assert {name: one["requests"] for name, one in by_tier.items()} == {"fast": 45, "plain": 90, "batch": 45}
    ours, theirs = found["forebay"], found["least-requests"]
    assert ours["fast"]["in_time"] > 0.95
    assert ours["fast"]["ttft_p95_s"] < 2
    assert ours["fast"]["refused"] == 0 < ours["batch"]["refused"]
    assert ours["plain"]["in_time"] + ours["plain"]["refused"] > 0.9
    assert theirs["fast"]["in_time"] < 0.3
    assert theirs["batch"]["refused"] == 0
    table = [line.split()[:3] for line in run(*args).output.splitlines()]
    assert [line for line in table if line[1:] == ["fast", "45"]] == [[name, "fast", "45"] for name in found]


def test_where_the_trace_names_no_tiers_shares_of_it_are_said(tmp_path: Path, tiers: Path) -> None:
    trace = crowded(tmp_path, None)
    args = ("--trace", trace, *SMALL, "--policies", "llm-d", "--tiers", tiers, "--json")
    mixes = ((), ("--mix", "fast=0.25,batch=0.25"), ("--mix", "batch=1"))
    found = [json.loads(run(*args, *more).stdout)["policies"]["llm-d"]["tiers"] for more in mixes]
    counts = [{name: one["requests"] for name, one in by_tier.items()} for by_tier in found]
    assert counts[0] == {"fast": 0, "plain": 180, "batch": 0}
    assert [round(count / 45) for count in counts[1].values()] == [1, 2, 1]
    assert counts[2] == {"fast": 0, "plain": 0, "batch": 180}


def test_tiers_that_are_not_declared_are_refused_in_a_sentence(tmp_path: Path, tiers: Path) -> None:
    trace = crowded(tmp_path, "gold")
    for args, said in (
        (("--tiers", tiers), "crowd.jsonl names the tier 'gold', which is not declared: there are fast, plain, batch"),
        (("--tiers", tiers, "--mix", "gold=0.5"), "--mix names the tier 'gold', which is not declared"),
        (("--tiers", tiers, "--mix", "fast"), "'fast' is no tier and its share, such as batch=0.2"),
        (("--tiers", tiers, "--mix", "fast=nan"), "shares are from 0 to 1, and 1 together at most"),
        (("--tiers", tiers, "--mix", "fast=0.6,batch=0.6"), "shares are from 0 to 1, and 1 together at most"),
        (("--mix", "fast=0.5"), "name the file that declares them with --tiers"),
        (("--tiers", trace), "not valid YAML"),
    ):
        shown = run("--trace", trace, *SMALL, *args)
        assert shown.exit_code in (1, 2)
        assert said in " ".join(shown.output.replace("│", " ").split()), shown.output
    (tmp_path / "none.yaml").write_text("apiVersion: forebay.dev/v1")
    assert "declares no tiers" in run("--trace", trace, *SMALL, "--tiers", tmp_path / "none.yaml").output
    assert run("--trace", trace, *SMALL, "--policies", "llm-d").exit_code == 0  # without --tiers, all are alike


@pytest.mark.parametrize(("args", "said"), [
    (("--policies", "fastest"), "'fastest' is no policy; choose of forebay, "),
    (("--policies", ","), "name one policy at least"),
    (("--warm-up", "60"), "must be under the 59 s"),
    (("--prefill-rate", "0"), "--prefill-rate"),
    (("--replicas", "0"), "--replicas"),
    (("--seconds", "9.9", "--warm-up", "9.1"), "no request of the 0.8 s that count had begun"),
    (("--plot", "/nowhere/at/all.svg", "--policies", "llm-d"), "cannot write /nowhere/at/all.svg"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(trace: Path, args: tuple[str, ...], said: str) -> None:
    shown = run("--trace", trace, "--processes", "1", *args)
    assert shown.exit_code in (1, 2)
    assert said in shown.output
    assert "Traceback" not in shown.output


def test_a_file_that_is_no_trace_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("buy milk")
    shown = run("--trace", tmp_path / "notes.txt")
    assert shown.exit_code == 1
    assert "line 1 is not JSON" in shown.output
    assert run("--trace", tmp_path / "none").exit_code == 2
