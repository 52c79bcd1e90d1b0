"""A sequence against an engine that loses messages, restarts, and has a replay with faults of its own."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forebay.router.prefix.sequence import END, Action, Apply, Ask, Clear, Limits, Sequence

STEPS = st.lists(
    st.sampled_from(["publish"] * 6 + ["lose"] * 2 + ["restart", "blip", "answer", "answer", "wait"]), max_size=60
)


class Engine:
    """Publishes; `buffer` of its latest batches are in the replay, of which an answer brings at most `brings`."""

    def __init__(self, buffer: int, brings: int) -> None:
        self.life = 0
        self.sent: list[tuple[int, bytes]] = []
        self.number = 0
        self.buffer, self.brings = buffer, brings

    def publish(self) -> tuple[int, bytes]:
        sent = self.number, f"{self.life} {self.number}".encode()
        self.sent = [*self.sent, sent][-self.buffer :]
        self.number += 1
        return sent

    def restart(self) -> None:
        self.life, self.number, self.sent = self.life + 1, 0, []

    def answer(self, start: int) -> list[tuple[int, bytes]]:
        return [*[row for row in self.sent if row[0] >= start][: self.brings], (END, b"")]


class Listener:
    """Does what the sequence says. `known` is what a sink would hold: the batches since it was cleared last."""

    def __init__(self, engine: Engine, *, replay: bool) -> None:
        self.engine = engine
        self.sequence = Sequence(replay=replay, limits=Limits(replays_a_minute=5, held=8))
        self.known: list[tuple[int, int]] = []
        self.asked: int | None = None
        self.asks = 0
        self.now = 0.0
        self.do(self.sequence.connected(self.now))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Apply):
                life, number = map(int, action.payload.split())
                assert number == action.number
                self.known.append((life, number))
            elif isinstance(action, Clear):
                self.known.clear()
            elif isinstance(action, Ask):
                self.asked = action.start
                self.asks += 1
        self.check()

    def check(self) -> None:
        """What is known comes of one life of the engine, and without a hole."""
        if self.known:
            (life, first), *_ = self.known
            assert self.known == [(life, number) for number in range(first, first + len(self.known))]

    def step(self, step: str) -> None:
        if step == "publish":
            self.do(self.sequence.live(*self.engine.publish(), self.now))
        elif step == "lose":
            self.engine.publish()
        elif step in ("restart", "blip"):
            self.asked = None
            self.do(self.sequence.disconnected())
            if step == "restart":
                self.engine.restart()
            self.do(self.sequence.connected(self.now))
        elif step == "answer":
            self.hear()
        else:
            self.now += 4.0
            self.do(self.sequence.tick(self.now))

    def hear(self) -> None:
        """The answer to the latest question; a further question cuts it short."""
        start, self.asked = self.asked, None
        for row in self.engine.answer(start) if start is not None else ():
            self.do(self.sequence.replayed(*row, self.now))
            if self.asked is not None:
                return

    def settle(self) -> None:
        """A minute of calm, two batches that arrive, and every question answered."""
        for pause in (0.0, 61.0, 0.0):
            self.now += pause
            self.do(self.sequence.tick(self.now))
            if pause or self.asked is None:
                self.step("publish")
            while self.asked is not None:
                self.hear()


@given(STEPS, st.integers(1, 12), st.integers(1, 12), st.booleans())
def test_what_is_known_is_of_one_life_and_whole(steps: list[str], buffer: int, brings: int, replay: bool) -> None:
    listener = Listener(Engine(buffer, brings), replay=replay)
    for step in steps:
        listener.step(step)
    listener.settle()
    life, number = listener.known[-1]
    assert (life, number) == (listener.engine.life, listener.engine.number - 1), "it has caught up"


@given(STEPS, st.integers(2, 12))
def test_with_a_replay_that_reaches_back_everything_is_known(steps: list[str], brings: int) -> None:
    listener = Listener(Engine(buffer=1000, brings=brings), replay=True)
    for step in steps:
        listener.step(step)
    listener.settle()
    if listener.known[0][1] != 0:  # it had to go on without the replay, for good reason
        assert listener.asks >= 5 or "wait" in steps
    else:
        assert len(listener.known) == listener.engine.number


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6) | st.just(END), st.integers(0, 2)), max_size=80))
def test_whatever_comes_is_answered_within_bounds(messages: list[Any]) -> None:
    """Numbers and rows without rhyme or reason."""
    sequence = Sequence(replay=True, limits=Limits(replays_a_minute=3, asks=4, rows=20, held=5))
    asked = sum(isinstance(each, Ask) for each in sequence.connected(0.0))
    for live, number, life in messages:
        payload = b"" if number == END and not life else f"{life} {number}".encode()
        taken = sequence.live if live else sequence.replayed
        asked += sum(isinstance(each, Ask) for each in taken(number, payload, 0.0))
        assert len(sequence._held) <= 5
    assert asked <= 3 * 4
