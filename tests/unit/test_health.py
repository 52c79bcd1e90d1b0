"""When an endpoint counts as up, by its probes and by what happens to requests; how it is put out and let back in."""

import pytest

from forebay.router.health import (
    ANSWERS_TO_UP,
    FAILED_WITHIN_S,
    FIRST_OUT_S,
    LONGEST_OUT_S,
    OUT,
    RETURNING,
    STOOD_S,
    WHOLE,
    Card,
    Condition,
    Failed,
    Misfit,
    Well,
)  # fmt: skip
from forebay.router.routing import Health

GONE = Failed("refused", at_once=True)
LONG = 10 * LONGEST_OUT_S


class Told:
    """An endpoint and its clock. Each thing that is told takes `step` seconds."""

    def __init__(self, step: float = 2.0) -> None:
        self.condition = Condition("a")
        self.now = 1000.0
        self.step = step

    def probes(self, *findings: Card | Failed | Misfit | Well) -> Condition:
        for finding in findings:
            if isinstance(finding, Failed):
                self.condition.failed(finding.reason, self.now, at_once=finding.at_once, probe=True)
            else:
                self.condition.probed(finding, self.now)
            self.now += self.step
        return self.condition

    def requests(self, outcomes: str, *, spare: bool = True) -> Health:
        """`-` for one that failed, `+` for one that was answered."""
        for outcome in outcomes:
            if outcome == "+":
                self.condition.answered(self.now)
            else:
                self.condition.failed("a request failed", self.now, spare=spare)
            self.now += self.step
        return self.condition.health

    def out_for(self) -> float:
        """Seconds until a good probe lets it in again."""
        return max(0.0, self.condition.back_at - self.now)


def after(*findings: Card | Failed | Misfit | Well) -> Condition:
    return Told().probes(*findings)


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
    assert not after(Card(), GONE).available


def test_one_that_comes_back_must_show_its_model() -> None:
    assert after(Card(), GONE, Well()).health is Health.DOWN
    assert after(Card(), GONE, Card()).health is Health.RETURNING
    other = after(Card(), GONE, Misfit("serves other"))
    assert (other.health, other.reason, other.available) == (Health.MISCONFIGURED, "serves other", False)
    other.probed(Card(4096, "adapter"), 2000.0)
    assert (other.health, other.max_model_len, other.lora) == (Health.UP, 4096, "adapter")


def test_one_that_was_never_up_is_starting_and_comes_in_like_any_other() -> None:
    told = Told(step=0.1)
    assert told.probes(GONE, GONE, GONE).health is Health.DOWN
    assert told.condition.ejected == 0
    assert told.probes(Card()).health is Health.UP


def test_requests_and_probes_count_apart_and_an_answer_forgives_a_part() -> None:
    told = Told()
    told.probes(Card(), Failed("timeout"))
    assert told.requests("-") is Health.UP
    told.probes(Well(), Well(), Well())  # which says nothing of requests
    assert told.requests("-") is Health.EJECTED
    assert told.condition.reason == "a request failed"
    told.condition.failed("again", told.now)
    assert told.condition.reason == "a request failed"


@pytest.mark.parametrize(("outcomes", "health"), [
    ("--", Health.EJECTED),
    ("-+-", Health.UP),
    ("-+-+-+-+-+", Health.EJECTED),  # every other one
    ("-++" * 40, Health.UP),  # every third
    ("+" * 50 + "-" + "+" * 50 + "-", Health.UP),
], ids=lambda given: given[:12])  # fmt: skip
def test_what_part_of_requests_may_fail(outcomes: str, health: Health) -> None:
    told = Told(step=0.01)
    told.probes(Card())
    assert told.requests(outcomes) is health


def test_one_whose_probes_fail_every_other_time_is_found() -> None:
    told = Told()
    told.probes(Card())
    for _ in range(5):
        told.probes(Failed("503"), Well())
    assert told.condition.health is Health.DOWN


def test_failures_that_are_long_past_say_nothing() -> None:
    told = Told(step=FAILED_WITHIN_S + 1)
    told.probes(Card())
    assert told.requests("-----") is Health.UP


def test_where_no_other_could_take_its_place_requests_alone_put_nobody_out() -> None:
    told = Told()
    told.probes(Card())
    assert told.requests("-" * 50, spare=False) is Health.UP
    assert told.requests("++++-") is Health.UP  # what is remembered is bounded
    assert told.probes(GONE).health is Health.DOWN


def test_it_is_out_for_longer_each_time_and_never_for_ever() -> None:
    told = Told(step=0.0)
    told.probes(Card())
    waits = []
    for _ in range(12):
        told.probes(GONE)
        waits.append(told.out_for())
        told.now += told.out_for() - 0.01
        assert told.probes(Card()).health is Health.DOWN
        told.now += 0.02
        assert told.probes(Card()).health is Health.RETURNING
    assert waits[:4] == pytest.approx([FIRST_OUT_S * 2**n for n in range(4)])
    assert waits[-1] == pytest.approx(LONGEST_OUT_S)
    assert told.condition.ejected == 12


def test_probes_that_go_on_failing_make_it_no_longer() -> None:
    told = Told(step=0.01)
    told.probes(Card(), *[GONE] * 50)
    assert told.out_for() < FIRST_OUT_S
    assert told.condition.ejected == 1


def test_one_that_stood_for_long_is_forgiven() -> None:
    told = Told(step=0.0)
    told.probes(Card())
    for _ in range(6):
        told.probes(GONE)
        told.now += LONG
        told.probes(Card())
    told.requests("+" * ANSWERS_TO_UP)
    assert told.condition.health is Health.UP
    told.now += STOOD_S - 1
    told.probes(GONE)
    assert told.out_for() == pytest.approx(FIRST_OUT_S * 2**6)
    told.now += LONG
    told.probes(Card())
    told.requests("+" * ANSWERS_TO_UP)
    told.now += STOOD_S
    told.probes(GONE)
    assert told.out_for() == pytest.approx(FIRST_OUT_S)


def test_it_returns_by_answers_and_a_single_failure_puts_it_out_again() -> None:
    told = Told()
    told.probes(Card(), GONE)
    assert told.condition.standing == OUT
    told.now += LONG
    told.probes(Card())
    assert (told.condition.standing, told.condition.proven) == (RETURNING, True)
    assert told.requests("+" * (ANSWERS_TO_UP - 1)) is Health.RETURNING
    assert told.requests("-") is Health.EJECTED
    assert told.condition.ejections == 2
    told.now += LONG
    told.probes(Card())
    assert told.requests("-", spare=False) is Health.RETURNING
    assert told.requests("+" * ANSWERS_TO_UP) is Health.UP
    assert told.condition.standing == WHOLE
    assert told.requests("-") is Health.UP


def test_one_that_fails_requests_and_then_its_probes_is_down_for_no_longer() -> None:
    told = Told(step=0.01)
    told.probes(Card())
    told.requests("--")
    before = told.condition.back_at
    assert told.probes(GONE).health is Health.DOWN
    assert told.condition.back_at == before


def test_a_clock_that_is_set_back_keeps_nobody_out_for_longer_than_the_longest() -> None:
    told = Told()
    told.probes(Card(), GONE)
    told.now -= 1e6
    told.probes(Card())
    told.now += LONGEST_OUT_S
    assert told.probes(Card()).health is Health.RETURNING
