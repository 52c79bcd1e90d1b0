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
