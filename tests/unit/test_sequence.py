"""What follows from numbered batches, told as transcripts: what happens, then what is to be done."""

from typing import Any

import pytest

from forebay.router.prefix.sequence import (
    END,
    Action,
    Apply,
    Ask,
    Clear,
    Gap,
    Limits,
    Over,
    Result,
    Sequence,
    Why,
    parse,
)  # fmt: skip


def batch(number: int, life: str = "a") -> bytes:
    """What an engine publishes: no two of its lives send the same bytes."""
    return f"{life}{number}".encode()


def applied(number: int, life: str = "a") -> Apply:
    return Apply(number, batch(number, life))


class Played:
    """A sequence that is driven by words. `life` of the engine is "a", then "b"."""

    def __init__(self, *, replay: bool = True, **limits: Any) -> None:
        self.sequence = Sequence(replay=replay, limits=Limits(**limits))
        self.now = 100.0

    def live(self, *numbers: int, life: str = "a") -> list[Action]:
        return [done for n in numbers for done in self.sequence.live(n, batch(n, life), self.now)]

    def rows(self, *numbers: int, life: str = "a") -> list[Action]:
        return [done for n in numbers for done in self.sequence.replayed(n, batch(n, life), self.now)]

    def end(self) -> list[Action]:
        return self.sequence.replayed(END, b"", self.now)

    def connected(self) -> list[Action]:
        return self.sequence.connected(self.now)

    def after(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.sequence.tick(self.now)


COMPLETE, FAILED, REFUSED, CUT = (Over(result) for result in Result)


def following(*, replay: bool = True, until: int = 2, **limits: Any) -> Played:
    """One that has applied the batches up to `until`."""
    played = Played(replay=replay, **limits)
    played.connected()
    if replay:
        played.end()
    played.live(*range(until + 1))
    return played


def test_a_late_start_is_filled_by_the_replay_and_what_came_meanwhile() -> None:
    played = Played()
    assert played.connected() == [Ask(0)]
    assert played.live(3, 4) == []
    assert played.rows(1, 2, 3) == [applied(1), applied(2), applied(3)], "the replay need not reach back to the start"
    assert played.end() == [applied(4), COMPLETE]
    assert played.live(5) == [applied(5)]


def test_an_engine_that_has_published_nothing() -> None:
    played = Played()
    assert (played.connected(), played.end()) == ([Ask(0)], [COMPLETE])
    assert played.live(1) == [Gap(0, 1), Ask(0)], "the first one was missed"
    assert played.rows(0, 1) + played.end() == [applied(0), applied(1), COMPLETE]


def test_without_a_replay_the_first_batch_seen_is_the_beginning() -> None:
    played = Played(replay=False)
    assert played.connected() == []
    assert played.live(7, 8) == [applied(7), applied(8)]


def test_a_gap_is_filled() -> None:
    played = following()
    assert played.live(5, 6) == [Gap(3, 5), Ask(2)], "asked from the last known on, to know the engine by it"
    assert played.rows(2, 3, 4, 5) == [applied(3), applied(4), applied(5)]
    assert played.end() == [applied(6), COMPLETE]


def test_a_gap_without_a_replay_clears() -> None:
    played = following(replay=False)
    assert played.live(5, 6) == [Gap(3, 5), Clear(Why.GAP), applied(5), applied(6)]


def test_a_gap_that_the_replay_does_not_reach_clears() -> None:
    played = following()
    assert played.live(9) == [Gap(3, 9), Ask(2)]
    assert played.rows(7, 8, 9) + played.end() == [Clear(Why.GAP), applied(7), applied(8), applied(9), COMPLETE]


def test_duplicates_are_dropped() -> None:
    played = following()
    assert played.live(2) == []
    assert played.live(1) == [Ask(2)], "an older one can be the sign of another engine"
    assert played.rows(2) + played.end() == [COMPLETE]
    assert played.live(3) == [applied(3)]


@pytest.mark.parametrize("known", ["missing", "different"])
def test_a_sequence_that_begins_anew_is_another_engine(known: str) -> None:
    played = following()
    assert played.live(0, life="b") == [Ask(2)]
    answer = played.end() if known == "missing" else played.rows(2, life="b")
    assert answer == [Clear(Why.RESTART), Ask(0)]
    assert played.rows(0, 1, life="b") + played.end() == [applied(0, "b"), applied(1, "b"), COMPLETE]


def test_a_sequence_that_begins_anew_without_a_replay() -> None:
    played = following(replay=False)
    assert played.live(0, 1, life="b") == [Clear(Why.RESTART), applied(0, "b"), applied(1, "b")]


def test_a_connection_that_breaks_says_nothing_if_the_engine_is_the_same() -> None:
    played = following()
    assert played.sequence.disconnected() == []
    assert played.connected() == [Ask(2)]
    assert played.rows(2, 3) + played.end() == [applied(3), COMPLETE]


def test_an_engine_that_came_back_and_has_overtaken_is_found_out() -> None:
    """Its number 3 is what is expected next: only the bytes of 2 tell."""
    played = following()
    played.sequence.disconnected()
    assert played.connected() == [Ask(2)]
    assert played.live(3, life="b") == []
    assert played.rows(2, life="b") == [Clear(Why.RESTART), Ask(0)]
    assert played.rows(0, 1, 2, life="b") == [applied(n, "b") for n in (0, 1, 2)]
    assert played.end() == [applied(3, "b"), COMPLETE]


def test_a_connection_that_breaks_without_a_replay_clears() -> None:
    played = following(replay=False)
    assert played.sequence.disconnected() == [Clear(Why.AWAY)]
    assert played.connected() == []
    assert played.live(9) == [applied(9)]


def test_a_connection_that_breaks_in_a_replay() -> None:
    played = following()
    played.live(5)
    assert played.rows(2, 3) == [applied(3)]
    assert played.sequence.disconnected() == [CUT]
    assert played.rows(4) == [], "of the old connection"
    assert played.connected() == [Ask(3)]


def test_a_silent_replay_is_given_up() -> None:
    played = following()
    played.live(5, 6)
    assert played.after(2.9) == []
    assert played.after(0.2) == [FAILED, Clear(Why.GAP), applied(5), applied(6)]
    assert played.live(7) == [applied(7)]


def test_a_replay_that_loses_rows_is_asked_for_the_rest() -> None:
    played = Played()
    played.connected()
    assert played.rows(0, 1, 4, 5) == [applied(0), applied(1)]
    assert played.end() == [Ask(1)]
    assert played.rows(1, 2, 3, 4) == [applied(2), applied(3), applied(4)]
    assert played.after(0.6) == [Ask(4)], "its end was lost"
    assert played.rows(4, 5) + played.end() == [applied(5), COMPLETE]


def test_a_replay_that_never_closes_its_hole_is_given_up() -> None:
    played = following()
    played.live(6)
    assert played.rows(2, 4, 5, 6) == []
    assert played.end() == [FAILED, Clear(Why.GAP), applied(6)]


def test_a_gap_among_what_came_during_the_replay() -> None:
    played = Played()
    played.connected()
    played.live(1, 2, 4)
    assert played.rows(0) == [applied(0)]
    assert played.end() == [applied(1), applied(2), COMPLETE, Gap(3, 4), Ask(2)]
    assert played.rows(2, 3) == [applied(3)]
    assert played.end() == [applied(4), COMPLETE]


def test_endless_replays_are_cut() -> None:
    played = Played(rows=3)
    played.connected()
    played.live(9)
    assert played.rows(0, 1, 2, 3) == [applied(0), applied(1), applied(2), FAILED, Clear(Why.GAP), applied(9)]
    slow = Played(total_s=10.0)
    slow.connected()
    for number in range(5):
        assert slow.rows(number) == [applied(number)]
        done = slow.after(2.0)
        assert done[:1] == [Ask(number)] or number == 4
        slow.rows(number)
    assert done == [FAILED, Clear(Why.GAP)]
    holes = Played(asks=2)
    holes.connected()
    assert holes.rows(0, 2) + holes.end() == [applied(0), Ask(0)]
    assert holes.rows(0, 1, 3) + holes.end() == [applied(1), FAILED, Clear(Why.GAP)]


def test_a_flood_of_gaps_asks_only_so_often() -> None:
    played = following(replays_a_minute=3)
    asked = 0
    for number in range(10, 1000, 10):
        done = played.live(number)
        asked += Ask in map(type, done)
        if Ask in map(type, done):
            played.rows(number - 10 if number > 10 else 2, *range(number - 9, number + 1))
            played.end()
        else:
            assert done == [Gap(number - 9, number), REFUSED, Clear(Why.GAP), applied(number)]
    assert asked == 2, "the first was at the start"
    played.now += 61.0
    assert Ask in map(type, played.live(2000))


def test_what_comes_during_a_replay_is_held_within_bounds() -> None:
    played = Played(held=3)
    played.connected()
    played.live(1, 2, 3, 4, 5)
    assert played.rows(0) + played.end() == [applied(0), applied(1), applied(2), applied(3), COMPLETE]
    assert played.live(6) == [Gap(4, 6), Ask(3)], "what was too much is missed, and fetched"
    small = Played(held_bytes=4)
    small.connected()
    small.live(1, 2, 3)
    assert small.rows(0) + small.end() == [applied(0), applied(1), applied(2), COMPLETE]


def test_a_given_up_replay_leaves_only_what_hangs_together() -> None:
    played = following()
    played.live(5, 6, 8, 9)
    assert played.after(3.1) == [FAILED, Clear(Why.GAP), applied(8), applied(9)]


def test_after_what_could_not_be_read_all_is_learnt_anew() -> None:
    played = following()
    assert played.sequence.again(2, batch(2), played.now) == [Clear(Why.UNREAD), Ask(0)]
    assert played.rows(0, 1, 2) + played.end() == [*map(applied, range(3)), COMPLETE]
    bare = following(replay=False)
    assert bare.sequence.again(2, batch(2), bare.now) == [Clear(Why.UNREAD), applied(2)]


def test_a_position_is_resumed_where_the_engine_is_the_same() -> None:
    played = Played()
    played.sequence.resume(applied(7).position())
    assert played.connected() == [Ask(7)]
    assert played.rows(7, 8) + played.end() == [applied(8), COMPLETE]


@pytest.mark.parametrize("known", ["missing", "different"])
def test_a_position_of_another_engine_is_worth_nothing(known: str) -> None:
    played = Played()
    played.sequence.resume(applied(7).position())
    assert played.connected() == [Ask(7)]
    answer = played.end() if known == "missing" else played.rows(7, 8, life="b")[:2]
    assert answer == [Clear(Why.RESTART), Ask(0)]


def test_a_position_without_a_replay_is_good_only_for_the_very_next_batch() -> None:
    for number, done in ((8, []), (9, [Gap(8, 9), Clear(Why.GAP)]), (3, [Clear(Why.RESTART)])):
        played = Played(replay=False)
        played.sequence.resume(applied(7).position())
        assert played.connected() == []
        assert played.live(number) == [*done, applied(number)]


@pytest.mark.parametrize("position", [b"", b"nonsense", b"\x92\x01\x02"])
def test_a_position_that_is_none(position: bytes) -> None:
    with pytest.raises(ValueError, match="not a position"):
        Sequence(replay=True).resume(position)


def test_frames_with_and_without_a_topic() -> None:
    assert parse([b"topic", (5).to_bytes(8, "big"), b"payload"]) == (5, b"payload")
    assert parse([b"\xff" * 8, b""]) == (END, b"")
    for frames in ([], [b"payload"], [b"1", b"payload"], [b"", b"", b"\0" * 8, b""]):
        with pytest.raises(ValueError, match=r"frames|bytes"):
            parse(frames)
