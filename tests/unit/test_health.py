"""When an endpoint counts as up, by its probes and by what happens to requests."""

from forebay.router.health import Card, Condition, Failed, Misfit, Well
from forebay.router.routing import Health


def after(*findings: Card | Failed | Misfit | Well) -> Condition:
    condition = Condition("a")
    for finding in findings:
        condition.probed(finding)
    return condition


def test_one_that_was_not_probed_yet_may_be_tried() -> None:
    assert after().available
    assert not after().proven


def test_a_failure_may_be_chance_and_a_second_is_not() -> None:
    once = after(Card(), Failed("timeout"))
    assert (once.health, once.reason) == (Health.UP, "")
    twice = after(Card(), Failed("timeout"), Failed("timeout"))
    assert (twice.health, twice.reason, twice.available) == (Health.DOWN, "timeout", False)
    between = after(Card(), Failed("timeout"), Well(), Failed("timeout"))
    assert between.available


def test_a_refused_connection_is_no_chance() -> None:
    assert not after(Card(), Failed("refused", at_once=True)).available


def test_one_that_comes_back_must_show_its_model() -> None:
    down = Failed("refused", at_once=True)
    assert after(Card(), down, Well()).health is Health.DOWN
    assert after(Card(), down, Card()).health is Health.UP
    other = after(Card(), down, Misfit("serves other"))
    assert (other.health, other.reason, other.available) == (Health.MISCONFIGURED, "serves other", False)
    other.probed(Card(4096, "adapter"))
    assert (other.health, other.max_model_len, other.lora) == (Health.UP, 4096, "adapter")


def test_requests_that_fail_count_with_the_probes_and_one_that_is_answered_forgives() -> None:
    condition = after(Card(), Failed("timeout"))
    condition.answered()
    condition.failed("reset")
    assert condition.available
    condition.failed("reset")
    assert condition.health is Health.DOWN
    assert condition.reason == "reset"
    condition.failed("again")
    assert condition.reason == "reset"
