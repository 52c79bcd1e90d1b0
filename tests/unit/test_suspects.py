"""Which endpoints a retry keeps away from."""

from forebay.platform.relay.suspects import SUSPECT_S, Suspects


def test_a_suspect_is_one_of_its_pool_until_it_answers_or_time_has_passed() -> None:
    suspects = Suspects()
    suspects.add("main", "a", 100.0)
    suspects.add("main", "b", 101.0)
    suspects.add("other", "a", 100.0)
    suspects.clear("main", "b")
    suspects.clear("main", "never seen")
    assert suspects.of("main", 100.0) == ("a",)
    assert suspects.of("other", 100.0 + SUSPECT_S - 0.1) == ("a",)
    assert suspects.of("main", 100.0 + SUSPECT_S) == ()


def test_a_new_failure_counts_anew() -> None:
    suspects = Suspects()
    suspects.add("main", "a", 100.0)
    suspects.add("main", "a", 150.0)
    assert suspects.of("main", 100.0 + SUSPECT_S) == ("a",)
