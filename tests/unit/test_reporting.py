"""When a front door tells others what it has booked: soon, seldom, and to somebody."""

from forebay.router.peers import Report
from forebay.router.reporting import ALONE_S, FOR_EACH_PEER_S, HEARTBEAT_S, TELL_EVERY_S, Reporter
from tests.virtual import Table


def told(table: Table, reporter: Reporter, seconds: float) -> list[float]:
    """When it reports, if it is asked as often as it says."""
    times, until = [], table.now + seconds
    while table.now < until:
        if reporter.report(table.now) is not None:
            times.append(table.now)
        table.now += reporter.pause_s
    return times


def test_while_nothing_changes_it_reports_once_in_a_heartbeat() -> None:
    table = Table("a")
    reporter = Reporter(table.core.peers, "one")
    table.place(("x", 100))
    assert len(told(table, reporter, 10 * HEARTBEAT_S)) == 10
    reporter.hear(Report("other", 1, []), table.now)
    assert len(told(table, reporter, 2.5 * HEARTBEAT_S)) == 3


def test_a_change_is_told_at_the_next_look_where_somebody_hears_it() -> None:
    table = Table("a")
    reporter = Reporter(table.core.peers, "one")
    assert reporter.report(table.now) is not None
    table.place(("x", 100))
    assert (reporter.report(table.now), reporter.pause_s) == (None, ALONE_S)
    reporter.hear(Report("other", 1, []), table.now)
    first = reporter.report(table.now)
    assert first is not None
    assert [(one.endpoint, one.share.in_flight) for one in first.entries] == [("a", 1)]
    assert reporter.report(table.now) is None
    table.place(("y", 100))
    second = reporter.report(table.now)
    assert second is not None
    assert (second.number, second.entries[0].share.in_flight) == (first.number + 1, 2)
    assert reporter.pause_s == TELL_EVERY_S


def test_a_newcomer_is_told_although_nothing_has_changed() -> None:
    table = Table("a")
    reporter = Reporter(table.core.peers, "one")
    for number in range(1, 31):
        reporter.hear(Report(f"other {number}", 1, []), table.now)
        assert reporter.report(table.now) is not None
        assert reporter.report(table.now) is None
    assert reporter.pause_s == 30 * FOR_EACH_PEER_S
    reporter.again()
    assert reporter.report(table.now) is not None
