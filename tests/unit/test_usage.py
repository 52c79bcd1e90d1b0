from hypothesis import given
from hypothesis import strategies as st

from forebay.metering import Quantities, Status, billable, is_measured, quantities
from forebay.metering.usage import MAX_TOKENS, add

counts = st.none() | st.integers(-10, 300_000) | st.integers(-(2**70), 2**70)


@given(counts, counts, counts, counts, counts)
def test_classes_are_disjoint_and_add_up_to_the_prompt_whatever_the_engine_says(
    prompt: int | None, cached: int | None, written: int | None, completion: int | None, reasoning: int | None
) -> None:
    found = quantities(prompt, cached, written, completion, reasoning)
    assert found.input_total == min(max(prompt or 0, 0), MAX_TOKENS)
    assert found.output == min(max(completion or 0, 0), MAX_TOKENS)
    assert min(found.input_uncached, found.cache_read, found.cache_write, found.reasoning) >= 0
    assert found.reasoning <= found.output
    assert found.cache_read <= max(cached or 0, 0)


def test_consistent_counts_pass_unchanged() -> None:
    assert quantities(100, 64, 16, 30, 12) == Quantities(20, 64, 16, 30, 12)


def test_cached_tokens_beyond_the_prompt_are_cut_to_it() -> None:
    assert quantities(10, 64, 5, 1) == Quantities(0, 10, 0, 1)


def test_zero_is_a_value_and_none_is_missing() -> None:
    assert is_measured(0, 0)
    assert not is_measured(7, None)
    assert not is_measured(None, 0)
    assert quantities(0, 0, 0, 0, 0) == quantities(None) == Quantities()


def test_completed_and_cancelled_attempts_are_billed_and_others_are_not() -> None:
    used = quantities(100, 64, 0, 30)
    assert {status: billable(status, used) for status in Status} == {
        Status.COMPLETED: used,
        Status.CANCELLED: used,
        Status.CONTINUED: used,
        Status.FAILED: Quantities(),
        Status.LOST: Quantities(),
    }


def test_sums_are_class_by_class() -> None:
    assert add(Quantities(1, 2, 3, 4, 5), Quantities(10, 20, 30, 40, 50)) == Quantities(11, 22, 33, 44, 55)


def test_an_attempt_that_continues_another_is_billed_its_output_alone() -> None:
    used = quantities(100, 64, 8, 30, 5)
    assert billable(Status.COMPLETED, used, continues=True) == Quantities(output=30, reasoning=5)
    assert billable(Status.FAILED, used, continues=True) == Quantities()
