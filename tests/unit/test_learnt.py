"""What was learnt of engines outlasts the process that learnt it."""

from pathlib import Path

import pytest

from forebay.platform.warm import rates
from forebay.router.core import Core
from forebay.router.rates import POOLED, Learnt
from tests.virtual import POOL, WEIGHTS, Table


def taught(*endpoints: str) -> Table:
    """Engines that compute 10,000 tokens a second."""
    table = Table(*endpoints)
    for number in range(60):
        for name in endpoints:
            placed = table.place((f"{name}{number}", 4_000), without=tuple(set(endpoints) - {name}))
            table.begin(placed)
            table.now += 0.5
            table.end(placed, prompt_tokens=4_000, cached=0, output=50, first_token_s=0.41, decode_s=1.0)
    return table


async def test_rates_are_there_after_a_restart(tmp_path: Path) -> None:
    table, file = taught("a", "b"), tmp_path / "router" / "one.rates.json"
    await rates.keep(table.core, file)
    again = Table("a", "c")
    rates.load(file, again.core)
    expected = table.pool.members["a"].rates
    for name in ("a", "c"):  # a new endpoint is taken to be like those that were known
        found = again.pool.members[name].rates
        assert found.prefill_s == pytest.approx(expected.prefill_s, rel=0.05)
        assert found.decode_s == pytest.approx(expected.decode_s, rel=0.05)
    assert again.pool.members["a"].own.prefills == POOLED  # what comes next may still change it


async def test_nothing_learnt_writes_nothing_and_a_missing_file_is_no_fault(tmp_path: Path) -> None:
    await rates.keep(Table("a").core, tmp_path / "none")
    assert not list(tmp_path.iterdir())
    rates.load(tmp_path / "none", Core({}, WEIGHTS))


@pytest.mark.parametrize("text", ["", "{", "[{}]", '[{"pool": 5}]', "null", "\xff"])
def test_a_file_that_is_none_is_passed_over(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "rates"
    file.write_text(text, "latin-1")
    table = Table("a")
    rates.load(file, table.core)
    assert "learnt anew" in caplog.text
    assert not table.pool.members["a"].own.prefills


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_numbers_that_cannot_be_are_not_believed(value: float) -> None:
    table = Table("a")
    before = table.pool.members["a"].rates
    table.core.relearn(
        [Learnt(POOL, "a", 0.01, value, 0.0, 0.02, 9, 9), Learnt(POOL, "", value, 0.1, 0.0, 0.02, 9, 9)]
    )
    table.core.relearn([Learnt("elsewhere", "a", 0.01, 0.01, 0.0, 0.02, 9, 9), Learnt(POOL, "z", 1, 1, 0, 1, 9, 9)])
    assert table.pool.members["a"].rates.prefill_s == before.prefill_s


def test_what_was_seen_since_is_not_overwritten() -> None:
    table = taught("a")
    seen = table.pool.members["a"].own.prefill_s
    table.core.relearn([Learnt(POOL, "a", 1.0, 1.0, 0.0, 1.0, 99, 99)])
    assert table.pool.members["a"].own.prefill_s == seen
