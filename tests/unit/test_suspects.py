"""Which endpoints a retry keeps away from."""

from forebay.platform.relay.suspects import SUSPECT_S, Suspects


def test_a_suspect_is_one_of_its_pool_until_it_answers_or_time_has_passed() -> None:
    suspects = Suspects()
    suspects.add("main", "a", 100.0)
    suspects.add("main", "b", 101.0)
    suspects.add("other", "a", 100.0)
    suspects.clear("main", "b")
    suspects.clear("main", "never seen")
    suspects.asked("main", "a", 130.0)
    suspects.asked("main", "never seen", 130.0)
    assert suspects.of("main", 100.0, again=True) == ("a",)
    assert suspects.of("main", 100.0, again=False) == ()
    assert suspects.of("other", 100.0 + SUSPECT_S - 0.1, again=True) == ("a",)
    assert suspects.of("main", 100.0 + SUSPECT_S, again=True) == ()


def test_a_new_failure_counts_anew() -> None:
    suspects = Suspects()
    suspects.add("main", "a", 100.0)
    suspects.add("main", "a", 150.0)
    assert suspects.of("main", 100.0 + SUSPECT_S, again=True) == ("a",)


def test_a_silent_one_is_tried_once_in_a_while_until_it_answers() -> None:
    suspects = Suspects()
    suspects.add("main", "a", 100.0, silent=True)
    suspects.add("main", "a", 101.0)  # another request failed there at once, which does not make it any better
    assert suspects.of("main", 102.0, again=False) == ("a",)
    later = 101.0 + SUSPECT_S
    assert suspects.of("main", later, again=False) == ()
    suspects.asked("main", "a", later)
    assert suspects.of("main", later, again=False) == ("a",)
    suspects.clear("main", "a")
    assert suspects.of("main", later, again=False) == ()
